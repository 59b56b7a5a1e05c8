package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
)

// connection has what a server behind a company login needs besides credentials.
type connection struct {
	headers       []string // of --header: "Name: value"
	cert, key, ca string   // files
}

// connection returns what the flags and the environment give. A flag has precedence.
func (a *app) connection() connection {
	with := a.connect
	for _, of := range []struct {
		flag *string
		name string
	}{{&with.cert, "EVENTBUS_CLIENT_CERT"}, {&with.key, "EVENTBUS_CLIENT_KEY"}, {&with.ca, "EVENTBUS_CA"}} {
		if *of.flag == "" {
			*of.flag = env(of.name)
		}
	}
	return with
}

// check refuses flags that have no meaning for a store.
func (c connection) check() error {
	for _, flag := range []struct {
		name  string
		given bool
	}{{"--header", len(c.headers) > 0}, {"--client-cert", c.cert != ""}, {"--client-key", c.key != ""}, {"--ca", c.ca != ""}} {
		if flag.given {
			return usage("leave it out, or give --url", "%s is for --url", flag.name)
		}
	}
	return nil
}

// own are the headers that the command or the connection sets.
var own = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// secret are the headers that no argument may have: other users of the machine see it.
var secret = []string{"Authorization", "Cookie", "Proxy-Authorization"}

// header returns the headers of --header and EVENTBUS_HEADERS. No error has a value, which may be a secret.
func (c connection) header() (http.Header, error) {
	all := make(http.Header)
	for i, line := range strings.Split(env("EVENTBUS_HEADERS"), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, err := parseHeader(line, fmt.Sprintf("line %d of EVENTBUS_HEADERS", i+1))
		if err != nil {
			return nil, err
		}
		all.Add(name, value)
	}
	given := make(http.Header)
	for i, text := range c.headers {
		name, value, err := parseHeader(text, fmt.Sprintf("--header number %d", i+1))
		if err != nil {
			return nil, err
		}
		if slices.Contains(secret, name) {
			return nil, usage("set EVENTBUS_HEADERS, or EVENTBUS_TOKEN for a token", "--header %s: each user of this machine sees it in the list of processes", name)
		}
		given.Add(name, value)
	}
	for name, values := range given {
		all[name] = values
	}
	return all, nil
}

// parseHeader parses "Name: value".
func parseHeader(text, where string) (name, value string, err error) {
	const next = "give 'Name: value', such as 'X-Team: shop'"
	name, value, found := strings.Cut(text, ":")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	switch {
	case !found:
		return "", "", usage(next, "%s has no colon", where)
	case !isToken(name):
		return "", "", usage(next, "%s: the name has other characters than letters, digits and -", where)
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	switch {
	case value == "":
		return "", "", usage(next+"; is a variable unset?", "%s: the header %s has no value", where, cutName(name))
	case strings.ContainsFunc(value, unicode.IsControl):
		return "", "", usage(next, "%s: the value of the header %s has a control character", where, cutName(name))
	case name == "Host":
		return "", "", usage("give the name in --url", "%s: the URL sets the header Host", where)
	case slices.Contains(own, name):
		return "", "", usage("leave it out", "%s: the command sets the header %s itself", where, name)
	}
	return name, value, nil
}

func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// tls returns the settings for https, or nil for the defaults.
func (c connection) tls() (*tls.Config, error) {
	if c.cert == "" && c.key == "" && c.ca == "" {
		return nil, nil //nolint:nilnil // http.Transport takes it for the defaults
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		text, err := readPEM("--ca", c.ca)
		if err != nil {
			return nil, err
		}
		if settings.RootCAs, err = x509.SystemCertPool(); err != nil {
			settings.RootCAs = x509.NewCertPool()
		}
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, usage("give the certificate of the authority, as PEM", "--ca %s has no certificate", c.ca)
		}
	}
	if c.cert == "" && c.key == "" {
		return settings, nil
	}
	pair, err := c.pair()
	settings.Certificates = []tls.Certificate{pair}
	return settings, err
}

// pair reads the client certificate. The file of the certificate may have the key, too.
func (c connection) pair() (pair tls.Certificate, err error) {
	if c.cert == "" {
		return pair, usage("add --client-cert, or set EVENTBUS_CLIENT_CERT", "--client-key has no certificate")
	}
	cert, err := readPEM("--client-cert", c.cert)
	if err != nil {
		return pair, err
	}
	key, flag, path := cert, "--client-cert", c.cert
	if c.key != "" {
		flag, path = "--client-key", c.key
		if key, err = readPEM(flag, path); err != nil {
			return pair, err
		}
	}
	switch encrypted, found := privateKey(key); {
	case encrypted:
		return pair, usage("write it without a passphrase, readable by you only: openssl pkey -in KEY -out FILE", "%s %s: the private key is encrypted", flag, path)
	case !found && c.key == "":
		return pair, usage("add --client-key, or set EVENTBUS_CLIENT_KEY", "--client-cert %s has no private key", path)
	case !found:
		return pair, usage("give the private key, as PEM", "--client-key %s has no private key", path)
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		return pair, usage("give a certificate and its own key, as PEM", "--client-cert %s: %w", c.cert, err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		return pair, usage("get a new certificate", "--client-cert %s is valid from %s to %s only", c.cert, timeText(pair.Leaf.NotBefore), timeText(pair.Leaf.NotAfter))
	}
	return pair, nil
}

// privateKey reports whether a PEM text has a private key, and whether that is encrypted.
func privateKey(text []byte) (encrypted, found bool) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return false, found
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			found = true
			if block.Headers["DEK-Info"] != "" || strings.HasPrefix(block.Type, "ENCRYPTED") {
				return true, true
			}
		}
	}
}

func readPEM(flag, path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("give the path of a PEM file that you may read", "%s: %w", flag, err)
	}
	return text, nil
}

// connectNext says what to do about an error of a connection.
func connectNext(err error) string {
	var alert *net.OpError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "give the certificate of the authority that the server uses: --ca FILE"
	case errors.As(err, new(x509.HostnameError)):
		return "give the host by a name that the certificate of the server has"
	case errors.As(err, &alert) && alert.Op == "remote error": // an alert of TLS, whose type crypto/tls does not export
		return "give a client certificate that the server accepts: --client-cert FILE --client-key FILE"
	}
	return "check the URL and that the program runs"
}
