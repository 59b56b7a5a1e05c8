package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// moment is an entry of a letter's story.
type moment struct {
	Class         string // "good", "bad" or ""
	Title, Detail string
	At            time.Time // zero if it is not known
	Error, Stack  string
	JSON          string // the details that the error declared
}

// keptFirst is the number of failures before those that a letter has left out.
const keptFirst = 10

// storyOf returns what happened to the event of a letter, oldest first.
func storyOf(l *eventbus.DeadLetter) []moment {
	published := moment{Class: "good", Title: "Published", At: l.Event.Time}
	if !l.Due.IsZero() {
		published.Detail = "scheduled for " + rfc3339(l.Due)
	}
	story := []moment{published}
	replays := 0
	for i := range l.Failures {
		f := &l.Failures[i]
		if i == keptFirst && l.FailuresOmitted > 0 {
			story = append(story, moment{Title: fmt.Sprintf("%s failures that the letter does not have", count(l.FailuresOmitted))})
		}
		if f.Replays > replays {
			replays = f.Replays
			story = append(story, moment{Class: "good", Title: fmt.Sprintf("Replay %d", replays)})
		}
		m := moment{Class: "bad", Title: fmt.Sprintf("Attempt %d failed at %s", f.Attempt, f.Subscription), At: f.Time, Error: f.Error}
		m.Detail, m.JSON = strings.Join(detailsOf(l, i), ", "), string(f.Details)
		if panicked, ok := f.Err.(*eventbus.PanicError); ok { //nolint:errorlint // methods of other errors are user code
			m.Stack = string(panicked.Stack)
		}
		story = append(story, m)
	}
	if l.Replays > replays {
		story = append(story, moment{Class: "good", Title: fmt.Sprintf("Replay %d", l.Replays)})
	}
	return append(story, moment{
		Class: "bad", Title: "Dead letter: " + strings.ReplaceAll(string(l.Reason), "_", " "), At: l.DiedAt, Detail: reasonTexts[l.Reason],
	})
}

// detailsOf describes a failure of a letter.
func detailsOf(l *eventbus.DeadLetter, i int) []string {
	f := &l.Failures[i]
	details := []string{"took " + duration(f.Duration)}
	if i > 0 && l.Failures[i-1].Replays == f.Replays && (i != keptFirst || l.FailuresOmitted == 0) {
		if delay := f.Time.Sub(l.Failures[i-1].Time) - f.Duration; delay > 0 {
			details = append(details, "began "+duration(delay)+" after the failure before")
		}
	}
	if f.Class != "" {
		details = append(details, "class "+f.Class)
	}
	if f.Rule != nil {
		details = append(details, f.Rule.String())
	}
	return details
}

// reasonTexts explains the reasons, and what to do.
var reasonTexts = map[eventbus.Reason]string{
	eventbus.ReasonExhausted:    "The last attempt failed. Replay it when the cause is fixed.",
	eventbus.ReasonPermanent:    "The error must not be retried. Edit the payload, or fix the handler, before a replay.",
	eventbus.ReasonCircuitOpen:  "The circuit of the subscription was open. Replay it when the circuit is closed.",
	eventbus.ReasonOverflow:     "The line of the subscription was full. Replay it when fewer deliveries are parked.",
	eventbus.ReasonCrash:        "The event was running each time the process crashed. Fix the handler before a replay.",
	eventbus.ReasonExpired:      "The next retry would have been too late. Replay it when the cause is fixed.",
	eventbus.ReasonTooLate:      "The event had expired before the handler was called, or would have before the next call. A replay does not expire.",
	eventbus.ReasonUnsubscribed: "The subscription ended before the event reached it. A replay needs a subscription of its name.",
	eventbus.ReasonShutdown:     "The bus was shut down before the dispatch settled. Replay it.",
	eventbus.ReasonDuplicate:    "The id was given to another event before. Compare the two, and publish this one with another id if it must be handled.",
	eventbus.ReasonOperator:     "An operator has given the delivery up. The audit says who, and why.",
	eventbus.ReasonInvalid:      "The event does not fit the bus that took it in. Compare the options of that bus and of the publisher before a replay.",
}
