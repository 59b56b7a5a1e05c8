package eventbus

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Codec encodes the payloads of a bus with a store. Its methods must be safe for concurrent use.
type Codec interface {
	Marshal(payload any) ([]byte, error)
	// Unmarshal decodes data into the value that a pointer points to, as json.Unmarshal does. For any,
	// maps and lists of any, the bus passes a pointer with an UnmarshalJSON method first, which keeps all
	// digits of numbers. If Unmarshal does not call it, it is called again, with the type. A field of type
	// any in a struct has the digits that Unmarshal keeps.
	Unmarshal(data []byte, pointer any) error
}

// encode returns the payload that handlers receive on a bus with a store: the encoded one. A method
// of the payload may panic.
func (b *durable) encode(payload any) (encoded any, err error) {
	refuse := func(err error) error {
		return &PayloadError{GoType: fmt.Sprintf("%T", payload), Err: err}
	}
	defer func() {
		if p := recover(); p != nil {
			err = refuse(errors.New("a method of the payload panicked: " + panicText(p)))
		}
	}()
	codec := b.config.codec
	var data []byte
	if codec == nil {
		data, err = json.Marshal(payload)
	} else {
		data, err = codec.Marshal(payload)
	}
	switch {
	case err != nil:
		return nil, refuse(err)
	case len(data) > b.config.payloadLimit:
		return nil, &PayloadError{GoType: fmt.Sprintf("%T", payload), Size: len(data), Limit: b.config.payloadLimit}
	}
	return b.encoded(data), nil
}

// encoded returns encoded bytes with the type that says who decodes them.
func (b *durable) encoded(data []byte) any {
	if b.config.codec == nil {
		return json.RawMessage(data)
	}
	return EncodedPayload(data)
}

// payloadBytes returns the bytes of an encoded payload.
func payloadBytes(payload any) []byte {
	switch p := payload.(type) {
	case json.RawMessage:
		return p
	case EncodedPayload:
		return p
	}
	return nil
}

// recordedError is the error of a failure that was read from a store.
type recordedError struct{ text, class string }

func (e *recordedError) Error() string { return e.text }

// withErrors returns failures that have their recorded errors.
func withErrors(failures []Failure) []Failure {
	all := slices.Clone(failures)
	for i := range all {
		if all[i].Err == nil {
			all[i].Err = &recordedError{all[i].Error, all[i].Class}
		}
	}
	return all
}

// eventIDEntry returns the entry of the table of remembered ids for an event id.
func eventIDEntry(id EventID) driver.Dedupe {
	return driver.Dedupe{Key: id.String(), Event: driver.ID(id)}
}

// remembered returns the entry for the id that a publisher gave to an event.
func (b *durable) remembered(d *dispatch, now time.Time) driver.Dedupe {
	entry := eventIDEntry(d.id)
	digest := sha256.New()
	for _, part := range [...]string{d.to.eventType, d.key, string(payloadBytes(d.payload))} {
		_, _ = fmt.Fprintf(digest, "%d %s", len(part), part) // the length separates the parts
	}
	entry.Content = hex.EncodeToString(digest.Sum(nil))
	entry.Expires = now.Add(b.config.idempotency)
	return entry
}
