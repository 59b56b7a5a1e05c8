package sqlite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var (
	powerCuts = flag.Int("cuts", 0, "number of power cuts of TestPowerCut; 0 for a few")
	cutSeed   = flag.Uint64("cutseed", 0, "seed of TestPowerCut; 0 for a new one")
)

func init() {
	tierWork["cut"] = workUntilCut
	tierWork["cut beside"] = workBesideUntilCut
}

// TestPowerCut cuts the power of a file system at random instants, while a bus publishes with keys and payloads of many
// sizes, schedules, retries, buries and replays, in half of the rounds with a second process beside it. After each cut,
// the store opens, Verify finds no damage, and each event that was acknowledged before the cut is a record, a letter, or
// was handled before the cut. Some rounds begin with new files.
//
// Its subtests are other faults of a disk: nothing acknowledged is lost, and the bus goes on when the fault ends.
func TestPowerCut(t *testing.T) {
	cuts, seed := *powerCuts, *cutSeed
	if cuts == 0 {
		if !*search {
			t.Skip("SKIP: only with -cuts or -search")
		}
		cuts = 3
	}
	needsDisks(t)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	for name, fault := range tierFaults {
		t.Run(name, fault)
	}
	r := &cutRun{t: t, seed: seed, disk: newDisk(t, 512, "commit=1000")}
	t.Run("cuts", func(t *testing.T) {
		r.t, r.disk.t = t, t
		for round := range cuts {
			r.round(round)
		}
	})
	r.disk.t = t
	t.Logf("%d cuts, %d lost, %d acknowledged, %d handled, %d letters and records after cuts, %d cuts with a process beside, %d of new files before the first acknowledgement, -cutseed=%d",
		r.cuts, r.lost, r.acknowledged, r.handled, r.found, r.besides, r.early, seed)
}

// cutRun is a run of TestPowerCut.
type cutRun struct {
	t    *testing.T
	seed uint64
	disk *disk

	books                                                    *tierBooks // of the current files
	cuts, lost, acknowledged, handled, found, besides, early int
}

func (r *cutRun) round(round int) {
	t := r.t
	random := rand.New(rand.NewPCG(r.seed, uint64(round)))
	fresh := round%4 == 0
	if fresh {
		for _, suffix := range []string{"", logSuffix, "-shm", leaseSuffix} {
			if err := os.Remove(r.disk.path() + suffix); !errors.Is(err, os.ErrNotExist) {
				require.NoError(t, err)
			}
		}
		r.books = newTierBooks()
	}
	knownAcknowledged, knownHandled := len(r.books.acknowledged), len(r.books.handled)
	spec := tierSpec{Work: "cut", Path: r.disk.path(), Seed: random.Uint64()}
	children := []*tierChild{startTierChild(t, spec)}
	if fresh && random.IntN(2) == 0 {
		time.Sleep(time.Duration(random.IntN(80_000)) * time.Microsecond) // also while the file is made
		r.early++
	} else {
		children[0].awaits("accepted", "", time.Time{})
		if random.IntN(2) == 0 {
			spec.Work = "cut beside"
			children = append(children, startTierChild(t, spec))
			r.besides++
			if random.IntN(4) > 0 {
				children[1].awaits("accepted", "", time.Time{})
			}
		}
		time.Sleep(time.Duration(random.IntN(700_000)) * time.Microsecond)
	}
	before, after := r.disk.cut()
	for _, c := range children {
		c.kill()
		r.books.add(c, before, after)
	}
	r.disk.restart()
	r.cuts++
	r.acknowledged += len(r.books.acknowledged) - knownAcknowledged
	r.handled += len(r.books.handled) - knownHandled
	if len(r.books.acknowledged) == 0 && !exists(r.disk.path()) {
		return // nothing was made
	}
	lost := r.books.lost(t, r.disk.path())
	r.found += r.books.found
	r.lost += len(lost)
	if len(lost) > 0 || t.Failed() {
		t.Fatalf("round %d, -cutseed=%d: %d acknowledged events are lost: %v", round, r.seed, len(lost), lost[:min(len(lost), 5)])
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// workUntilCut is the process with the bus.
func workUntilCut(t *testing.T, spec tierSpec) {
	random := rand.New(rand.NewPCG(spec.Seed, 0))
	s := openAt(t, spec.Path)
	s.cfg.checkpointAt = []int{50, 400, defaultCheckpoint}[random.IntN(3)]
	bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithLogger(logOfChild()),
		eventbus.WithRetry(eventbus.MaxRetries(2), eventbus.BaseDelay(10*time.Millisecond), eventbus.MaxDelay(30*time.Millisecond)))
	require.NoError(t, err)
	var mu sync.Mutex
	fails := 2 + random.IntN(6)
	_, err = bus.Subscribe("*", func(_ context.Context, e eventbus.Event) error {
		mu.Lock()
		fail := random.IntN(fails) == 0
		mu.Unlock()
		if fail {
			return errors.New("fails at random")
		}
		say("handled", e.ID)
		return nil
	}, eventbus.Named("works"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	publishers := 1 + random.IntN(6)
	for p := range publishers {
		go publishUntilCut(bus, p, rand.New(rand.NewPCG(spec.Seed, uint64(p)+1)))
	}
	for {
		time.Sleep(30 * time.Millisecond)
		if _, err := bus.DLQ().ReplayMatching(context.Background(), eventbus.LetterQuery{All: true}); err == nil {
			say("replayed", "")
		}
	}
}

func publishUntilCut(bus *eventbus.Bus, publisher int, random *rand.Rand) {
	for {
		opts := []eventbus.PublishOption{eventbus.Key(fmt.Sprint(publisher, random.IntN(2)))}
		if random.IntN(8) == 0 {
			opts = append(opts, eventbus.After(time.Duration(random.IntN(300))*time.Millisecond))
		}
		id, err := bus.Publish(context.Background(), "order", strings.Repeat("y", random.IntN(6000)), opts...)
		if err == nil {
			say("accepted", id)
		} else {
			time.Sleep(time.Millisecond) // the disk is cut
		}
	}
}

// workBesideUntilCut is the process beside it.
func workBesideUntilCut(t *testing.T, spec tierSpec) {
	bus, err := eventbus.New(eventbus.WithStore(openOnly(t, spec.Path)))
	require.NoError(t, err)
	_, err = bus.Subscribe("*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("works"))
	require.NoError(t, err)
	publishUntilCut(bus, 1000, rand.New(rand.NewPCG(spec.Seed, 1000)))
}
