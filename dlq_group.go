package eventbus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/fingerprint"
)

// LetterGroup is a set of dead letters that probably have the same cause: the same subscription,
// the same class of the last error, and the same error text apart from numbers. Letters without a
// failure, such as those of an open circuit, are grouped by reason.
type LetterGroup struct {
	// Fingerprint identifies the group, in any process. Use it in a LetterQuery. It is empty for the
	// group of the letters beyond 10,000 groups.
	Fingerprint  string `json:"fingerprint,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	// Class is the Go type of the last failure's error, such as "*fs.PathError". Wrappers are removed:
	// fmt.Errorf, errors.Join (the first error counts), Permanent, RetryAfter. It is empty without a
	// failure.
	Class string `json:"class,omitempty"`
	// Message is the error's text, cut at 1 KiB. Numbers, UUIDs, and hexadecimal numbers of at least 8
	// digits are replaced by #. Without a failure, Message is the reason.
	Message string `json:"message"`
	Count   int    `json:"count"`
	// First and Last are the earliest and the latest DiedAt of the letters, in UTC.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Newest is the largest id of the letters.
	Newest LetterID `json:"newest"`
}

// Limits of Groups.
const (
	maxGroups       = driver.MaxGroups
	maxGroupMessage = 1 << 10
)

// beyondGroups is the message of the group of all letters beyond maxGroups.
var beyondGroups = fmt.Sprintf("(beyond %d groups)", maxGroups)

// Groups returns the groups of the letters that match a query, with their counts. Groups are sorted
// by Count, then by Newest, both descending. An empty query matches all letters.
//
// Groups returns at most 10,000 groups, those of the newest letters. All other letters are counted
// in one more group at the end, without fingerprint and subscription.
//
// Groups holds no lock while it counts, at about 0.4 µs a letter, and stops when ctx ends. Errors:
// those of List; an *OptionError for Limit and Before.
func (q *DLQ) Groups(ctx context.Context, query LetterQuery) ([]LetterGroup, error) {
	f, err := q.wholeFilter(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("Groups: %w", err)
	}
	groups, err := q.bus.letters.groups(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("Groups: %w", err)
	}
	return groups, nil
}

// Group returns the group of a letter, without Count, First, Last and Newest.
func (l *DeadLetter) Group() LetterGroup {
	g := LetterGroup{Subscription: l.Subscription, Message: string(l.Reason)}
	if n := len(l.Failures); n > 0 {
		g.Class, g.Message = l.Failures[n-1].Class, fingerprint.WithoutNumbers(l.Failures[n-1].Error)
	}
	// Each part has its length in front, so that different groups have different texts.
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %s %t %s",
		len(g.Subscription), g.Subscription, len(g.Class), g.Class, len(l.Failures) > 0, g.Message))
	g.Fingerprint = hex.EncodeToString(sum[:fingerprintSize])
	if len(g.Message) > maxGroupMessage {
		g.Message = strings.ToValidUTF8(g.Message[:maxGroupMessage], "") + "…"
	}
	return g
}

const fingerprintSize = 16

// isFingerprint reports whether s has the form of a fingerprint.
func isFingerprint(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 2*fingerprintSize && s == strings.ToLower(s)
}

// classOf returns the class of an error, see LetterGroup.
func classOf(err error) string {
	if recorded, ok := err.(*recordedError); ok { //nolint:errorlint // only the store's own
		return recorded.class
	}
	return errchain.Class(err, func(err error) error {
		switch e := err.(type) { //nolint:errorlint // the type of this error, not of the errors that it wraps
		case *permanentError:
			return e.err
		case *throttleError:
			return e.err
		case *retryAfterError:
			return e.err
		}
		return nil
	})
}
