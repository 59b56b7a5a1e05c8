package eventbus

import (
	"encoding/json"
	"fmt"

	"github.com/surebus/eventbus/driver"
)

// Kinds of a letter's payload, in the first byte of driver.Letter.Payload and Original.
const (
	payloadJSON    = 'J' // json.RawMessage
	payloadEncoded = 'E' // EncodedPayload
)

func encodedLetterPayload(payload any) []byte {
	switch p := payload.(type) {
	case json.RawMessage:
		return append([]byte{payloadJSON}, p...)
	case EncodedPayload:
		return append([]byte{payloadEncoded}, p...)
	}
	return nil // a bus with a store has encoded the others
}

func decodedLetterPayload(part []byte) (any, error) {
	switch {
	case part == nil:
		return nil, nil //nolint:nilnil // a payload may be nil
	case len(part) > 0 && part[0] == payloadJSON:
		return json.RawMessage(part[1:]), nil
	case len(part) > 0 && part[0] == payloadEncoded:
		return EncodedPayload(part[1:]), nil
	}
	return nil, fmt.Errorf("the payload has an unknown kind")
}

// letter encodes a letter.
func (w *batch) letter(l *DeadLetter) *driver.Letter {
	details := *l
	details.Failures, details.Event.Payload, details.Original = nil, nil, nil
	return &driver.Letter{
		ID: driver.ID(l.ID), Event: driver.ID(l.Event.ID), Type: l.Event.Type, Key: l.Event.Key, Subscription: l.Subscription,
		Reason: string(l.Reason), Fingerprint: l.Fingerprint, Published: l.Event.Time, DiedAt: l.DiedAt,
		Details: w.encode(&details), Failures: w.encode(l.Failures),
		Payload: encodedLetterPayload(l.Event.Payload), Original: encodedLetterPayload(l.Original),
	}
}

// decodeLetter decodes a letter of a store.
func decodeLetter(from *driver.Letter) (l DeadLetter, err error) {
	if err = json.Unmarshal(from.Details, &l); err == nil {
		err = json.Unmarshal(from.Failures, &l.Failures)
	}
	if err == nil {
		l.Event.Payload, err = decodedLetterPayload(from.Payload)
	}
	if err == nil {
		l.Original, err = decodedLetterPayload(from.Original)
	}
	if err != nil {
		return DeadLetter{}, &DecodeError{What: "dead letter " + LetterID(from.ID).String(), Err: err}
	}
	l.Failures = withErrors(l.Failures)
	return l, nil
}

// positionOf returns the Position of a letter of a store.
func positionOf(from *driver.Letter) (int64, error) {
	var of struct {
		Position int64 `json:"position"`
	}
	if err := json.Unmarshal(from.Details, &of); err != nil {
		return 0, &DecodeError{What: "dead letter " + LetterID(from.ID).String(), Err: err}
	}
	return of.Position, nil
}
