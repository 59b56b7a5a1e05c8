package texts

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MaxDetails bounds the details of a failure, in bytes.
const MaxDetails = 8 << 10

// Details returns a copy of details as json.Marshal writes it, so that a store and an export do not
// change it: nil for none and for null. A JSON string that says why replaces details that cannot be
// kept.
func Details(details json.RawMessage) json.RawMessage {
	if len(details) == 0 {
		return nil
	}
	size, reason := len(details), ""
	if size <= 8*MaxDetails { // larger ones would hardly fit without their white space
		kept, err := json.Marshal(json.RawMessage(bytes.ToValidUTF8(details, []byte("\uFFFD"))))
		switch {
		case err != nil:
			reason = "not JSON"
		case string(kept) == "null":
			return nil
		case len(kept) <= MaxDetails:
			return kept
		}
		size = len(kept)
	}
	if reason == "" {
		reason = fmt.Sprintf("%d bytes exceed the limit of %d", size, MaxDetails)
	}
	text, _ := json.Marshal("details omitted: " + reason) // a string always encodes
	return text
}
