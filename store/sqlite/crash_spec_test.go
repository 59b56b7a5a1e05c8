//go:build unix

package sqlite

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// crashSpec is the work of a child process, which TestCrash passes in crashEnv.
type crashSpec struct {
	Path string
	Seed uint64
	Life int // number of the process in the test
	Born int // Life of the first process with this file
	// Began is when the process began. What has died before is on the copy that the parent has checked.
	Began time.Time

	Failpoint string // where the child kills itself
	Hit       int    // on which call of the failpoint

	Recover bool // it publishes nothing
	Quiet   bool // the same, and it ends when everything is settled
	Idle    bool // it stops publishing before long, so that the store becomes idle

	Publishers int
	Queue      int
	Workers    int
	Checkpoint int // pages
	Isolation  bool
	History    time.Duration // retention; 0: no history
	Beside     bool          // another process works beside it, for longer than it lives
	IsBeside   bool          // it is that process
	Standbys   int           // processes that wait for the lease beside it
	Standby    int           // it is one of these, from 1
	Tx         bool          // it publishes in transactions of its own, too
	Emit       bool          // its handlers emit events
	Pause      bool
	Fault      bool // a commit fails, and with it the store
	Shutdown   time.Duration
	Hurry      bool // Shutdown's context ends soon
	Mail       mailLife
	Again      []againEvent
}

// mailLife is what becomes of the subscription mail, which has another name in each process.
type mailLife int

const (
	mailFirst   mailLife = iota // made before Start
	mailLate                    // made while the bus runs
	mailMissing                 // not made: its deliveries are orphaned
	mailLeaves                  // unsubscribed while the bus runs
)

// againEvent is an event of an earlier process to publish again with its id. The earlier process may
// have been killed before it knew whether the event was accepted.
type againEvent struct {
	Name string
	Type string
	ID   string
}

// crashPayload is the payload of each event.
type crashPayload struct {
	Name string `json:"name"`
	Pad  string `json:"pad"`
}

func payloadOf(name string) crashPayload {
	h := hashOf(name)
	size := int(h % 60)
	if h%97 == 0 {
		size = 6000
	}
	return crashPayload{Name: name, Pad: strings.Repeat("x", size)}
}

// contentHash identifies what a handler must receive.
func contentHash(eventType, key, metadata string, payload []byte) string {
	return fmt.Sprintf("%016x", hashOf(eventType, key, metadata, string(payload)))
}

func hashOf(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d %s", len(p), p)
	}
	x := h.Sum64() // FNV mixes the last bytes badly
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// Names of the subscriptions, in their order. mail is made as mail.N in the process N.
const (
	subStock = "stock" // without a circuit
	subShip  = "ship"  // limited to two calls, and paused at times
	subBill  = "bill"  // its circuit opens at times
	subMail  = "mail"
)

var crashTypes = map[string][]string{
	"order.a": {subStock, subShip},
	"order.b": {subStock, subShip, subBill, subMail},
	"bill.x":  {subBill},
	"mail.x":  {subMail},
}

var crashTypeNames = []string{"order.a", "order.b", "bill.x", "mail.x"}

// subPatterns lists the pattern of each subscription.
var subPatterns = map[string]string{
	subStock: "order.*", subShip: "order.{a,b}", subBill: "{order.b,bill.*}", subMail: "{order.b,mail.*}",
}

func mailName(life int) string { return fmt.Sprintf("mail.%d", life) }

// canonical returns the name of a subscription without the number of its process.
func canonical(name string) string {
	if strings.HasPrefix(name, subMail+".") {
		return subMail
	}
	return name
}

const crashRetries = 2

// behaviour is what a handler does.
type behaviour struct {
	sleep   time.Duration
	result  string // ok, err, perm, panic
	publish bool   // it publishes an event
}

// behaviourOf derives the behaviour from the seed, so that the parent knows it as well.
func behaviourOf(seed uint64, name, sub string, attempt, replays int) behaviour {
	h := rand.New(rand.NewPCG(seed, hashOf(name, sub, fmt.Sprint(replays))))
	b := behaviour{result: "ok"}
	switch n := h.IntN(100); {
	case n < 10:
		b.sleep = time.Duration(h.IntN(10)) * time.Millisecond
	case n < 12:
		b.sleep = time.Duration(100+h.IntN(30)) * time.Millisecond
	}
	switch n := h.IntN(100); {
	case replays > 2:
	case n < 10:
		if attempt <= 1+h.IntN(crashRetries) {
			b.result = "err"
		}
	case n < 14:
		if attempt == 1 {
			b.result = "panic"
		}
	case n < 20:
		b.result = "err"
	case n < 26:
		b.result = "perm"
	case n < 29:
		b.publish = attempt == 1 && replays == 0
	}
	return b
}

// failureText is the error text of a failing handler.
func failureText(name, sub string, attempt, replays int) string {
	return fmt.Sprintf("fails %s %s %d %d", name, sub, attempt, replays)
}

func (b behaviour) err(text string) error {
	switch b.result {
	case "err":
		return errors.New(text)
	case "perm":
		return eventbus.Permanent(errors.New(text))
	case "panic":
		panic(text)
	}
	return nil
}
