package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// canary is a secret that no output may have.
const canary = "canary-4711"

// Headers of a company login go with each request, and those of the arguments replace those of the environment.
func TestZ22_Headers(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = io.WriteString(w, "{}\n")
	}))
	defer server.Close()
	t.Setenv("EVENTBUS_HEADERS", "\n CF-Access-Client-Id: id \r\nCf-access-client-secret:"+canary+"\nX-Team: one\nX-Team: two\nauthorization: Basic "+canary+"\n")
	code, _, errOut := call(t, "stats", "--url", server.URL, "--header", "x-team: three", "--header", "User-Agent: shop", "--header", "X-Team:four: 4")
	require.Zero(t, code, errOut)
	require.Equal(t, []string{"id"}, got["Cf-Access-Client-Id"])
	require.Equal(t, []string{canary}, got["Cf-Access-Client-Secret"])
	require.Equal(t, []string{"three", "four: 4"}, got["X-Team"])
	require.Equal(t, []string{"shop"}, got["User-Agent"])
	require.Equal(t, []string{"Basic " + canary}, got["Authorization"])
	code, _, errOut = call(t, "dlq", "export", "--url", server.URL)
	require.Zero(t, code, errOut)
	require.Equal(t, []string{"one", "two"}, got["X-Team"])
}

// A header that cannot be sent is an error that names it, and never its value.
func TestZ22_BadHeaders(t *testing.T) {
	for header, want := range map[string]string{
		canary:                            "has no colon",
		": " + canary:                     "the name has other characters",
		"bad name: " + canary:             "the name has other characters",
		"X-Ä: " + canary:                  "the name has other characters",
		"X-Empty:  ":                      "the header X-Empty has no value",
		"X-Nul: " + canary + "\x00":       "the value of the header X-Nul has a control character",
		"X-Esc: \x1b[2J" + canary:         "the value of the header X-Esc has a control character",
		"Host: " + canary:                 "the URL sets the header Host",
		"content-length: 7":               "the command sets the header Content-Length itself",
		"Transfer-Encoding: " + canary:    "the command sets the header Transfer-Encoding itself",
		"Authorization: Bearer " + canary: "each user of this machine sees it",
		"cookie: session=" + canary:       "each user of this machine sees it",
	} {
		code, out, errOut := call(t, "stats", "--url", "http://127.0.0.1:1", "--header", "X-Fine: 1", "--header", header)
		require.Equal(t, exitUsage, code, header)
		require.Contains(t, errOut, want, header)
		require.Contains(t, errOut, "\nnext: ")
		require.NotContains(t, out+errOut, canary)
		harmless(t, header, errOut)
		if want != "each user of this machine sees it" {
			require.Contains(t, errOut, "--header number 2")
		}
	}
	for headers, want := range map[string]string{
		"X-Fine: 1\n\n" + canary:        "line 3 of EVENTBUS_HEADERS has no colon",
		"X-Fine: 1\nX-A: \x07" + canary: "line 2 of EVENTBUS_HEADERS",
	} {
		t.Setenv("EVENTBUS_HEADERS", headers)
		code, out, errOut := call(t, "stats", "--url", "http://127.0.0.1:1")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errOut, want)
		require.NotContains(t, out+errOut, canary)
	}
	t.Setenv("EVENTBUS_HEADERS", "X-A: "+canary)
	code, out, errOut := call(t, "stats", "--url", "http://127.0.0.1:1")
	require.Equal(t, exitFailure, code)
	require.NotContains(t, out+errOut, canary, "a server that does not answer")
	code, out, errOut = call(t, "stats", "--url", "http://shop.example/admin")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "would send the headers unencrypted")
	require.NotContains(t, out+errOut, canary)
	t.Setenv("EVENTBUS_HEADERS", "Authorization: "+canary)
	t.Setenv("EVENTBUS_TOKEN", "a-token")
	code, out, errOut = call(t, "stats", "--url", "http://127.0.0.1:1")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "EVENTBUS_HEADERS has Authorization, and EVENTBUS_TOKEN")
	require.NotContains(t, out+errOut, canary)
}

// The headers go to the given host only.
func TestZ22_HeadersFollowNoRedirect(t *testing.T) {
	stolen := false
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen = true }))
	defer thief.Close()
	server := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	code, _, errOut := call(t, "stats", "--url", server.URL, "--header", "X-A: 1")
	require.Equal(t, exitFailure, code)
	require.Contains(t, errOut, "for a login before the page, see EVENTBUS_HEADERS and --client-cert")
	require.False(t, stolen)
}

// What is for a URL is refused for a store, rather than ignored.
func TestZ22_ConnectionsAreForURLs(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	for _, flag := range []string{"--header", "--client-cert", "--client-key", "--ca"} {
		for _, command := range [][]string{{"stats"}, {"verify"}, {"serve", "--listen", "127.0.0.1:0"}} {
			code, _, errOut := call(t, append(command, "--store", path, flag, "X-A: 1")...)
			require.Equal(t, exitUsage, code)
			require.Contains(t, errOut, flag+" is for --url")
		}
	}
}

// issued is a key and a certificate, as PEM files.
type issued struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	path, pem string // of the key, and of the certificate
}

// issue makes a certificate that an authority signs, or the certificate itself without one.
func issue(t *testing.T, name string, until time.Time, by *issued) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	signer := &issued{template, key, "", ""}
	if by != nil {
		signer = by
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.cert, &key.PublicKey, signer.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	text, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	c := &issued{cert, key, filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")}
	write(t, c.path, "EC PRIVATE KEY", text)
	write(t, c.pem, "CERTIFICATE", der)
	return c
}

func write(t *testing.T, path, kind string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
}

// A client certificate opens a server that asks for one; each mistake is named, with what to do.
func TestZ22_ClientCertificates(t *testing.T) {
	authority := issue(t, "authority", time.Now().Add(time.Hour), nil)
	client := issue(t, "robot", time.Now().Add(time.Hour), authority)
	other := issue(t, "other", time.Now().Add(time.Hour), issue(t, "nobody", time.Now().Add(time.Hour), nil))
	old := issue(t, "robot", time.Now().Add(-time.Hour), authority)

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }))
	known := x509.NewCertPool()
	known.AddCert(authority.cert)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	write(t, ca, "CERTIFICATE", server.Certificate().Raw)
	both := filepath.Join(dir, "both.pem")
	key, err := os.ReadFile(client.path)
	require.NoError(t, err)
	cert, err := os.ReadFile(client.pem)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(both, append(cert, key...), 0o600))
	encrypted := filepath.Join(dir, "encrypted.pem")
	write(t, encrypted, "ENCRYPTED PRIVATE KEY", []byte(canary))
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte(canary), 0o600))

	for _, args := range [][]string{
		{"--client-cert", client.pem, "--client-key", client.path, "--ca", ca},
		{"--client-cert", both, "--ca", ca},
	} {
		code, _, errOut := call(t, append(args, "stats", "--url", server.URL)...)
		require.Zero(t, code, errOut)
	}
	for _, c := range []struct {
		code       int
		want, next string
		args       []string
	}{
		{exitFailure, "unknown authority", "--ca FILE", []string{"--client-cert", both}},
		{exitFailure, "certificate", "--client-cert FILE --client-key FILE", []string{"--ca", ca}},
		{exitFailure, "certificate", "--client-cert FILE --client-key FILE", []string{"--ca", ca, "--client-cert", other.pem, "--client-key", other.path}},
		{exitUsage, "is valid from", "get a new certificate", []string{"--ca", ca, "--client-cert", old.pem, "--client-key", old.path}},
		{exitUsage, "does not match", "its own key", []string{"--client-cert", client.pem, "--client-key", other.path}},
		{exitUsage, "has no private key", "add --client-key", []string{"--client-cert", client.pem}},
		{exitUsage, "has no private key", "give the private key", []string{"--client-cert", client.pem, "--client-key", text}},
		{exitUsage, "has no certificate", "add --client-cert", []string{"--client-key", client.path}},
		{exitUsage, "is encrypted", "openssl pkey", []string{"--client-cert", client.pem, "--client-key", encrypted}},
		{exitUsage, "no such file", "PEM file that you may read", []string{"--client-cert", filepath.Join(dir, "missing"), "--client-key", client.path}},
		{exitUsage, "has no certificate", "of the authority", []string{"--ca", text}},
	} {
		code, out, errOut := call(t, append(c.args, "stats", "--url", server.URL)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errOut)
		require.Regexp(t, `(?s)^eventbus: .*`+c.want+`.*\nnext: .*`+c.next, errOut, c.args)
		require.NotContains(t, out+errOut, canary)
	}
	code, _, errOut := call(t, "stats", "--url", "http://127.0.0.1:1", "--client-cert", both)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "need https")

	t.Setenv("EVENTBUS_CLIENT_CERT", client.pem)
	t.Setenv("EVENTBUS_CLIENT_KEY", client.path)
	t.Setenv("EVENTBUS_CA", ca)
	code, _, errOut = call(t, "stats", "--url", server.URL)
	require.Zero(t, code, errOut)
}
