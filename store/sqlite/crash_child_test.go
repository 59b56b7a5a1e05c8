//go:build unix

package sqlite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

func init() { runCrashChild = crashChildMain }

// witnessFD is the pipe to the parent.
const witnessFD = 3

// maxWitness is the largest line that a pipe takes in one piece (PIPE_BUF).
const maxWitness = 4096

// report writes a line to the parent. What was written before SIGKILL stays readable, and lines never
// mix, so the pipe has the order in which things happened.
func report(verb string, fields ...any) {
	var line strings.Builder
	line.WriteString(verb)
	for _, f := range fields {
		line.WriteByte('\t')
		line.WriteString(strings.NewReplacer("\t", " ", "\n", " ").Replace(fmt.Sprint(f)))
	}
	text := line.String()
	if len(text) >= maxWitness {
		text = text[:maxWitness-1]
	}
	for {
		_, err := syscall.Write(witnessFD, []byte(text+"\n"))
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EINTR) {
			os.Exit(3) // the parent has ended
		}
	}
}

// crashChild is a process with a bus. It uses the bus as any program does.
type crashChild struct {
	spec    crashSpec
	store   *Store
	bus     *eventbus.Bus
	subs    map[string]*eventbus.Subscription // before Start
	began   time.Time
	nested  atomic.Int64 // events published by handlers
	cancels chan scheduledEvent
	stop    chan struct{} // publishers end
	ended   atomic.Bool   // Shutdown refuses events
	working sync.WaitGroup
}

type scheduledEvent struct {
	name string
	id   eventbus.EventID
}

func crashChildMain(text string) {
	c := &crashChild{began: time.Now(), stop: make(chan struct{}), cancels: make(chan scheduledEvent, 1000)}
	if err := json.Unmarshal([]byte(text), &c.spec); err != nil {
		panic(err)
	}
	report("C", c.spec.Life, os.Getpid(), c.spec.IsBeside, c.spec.Standby)
	c.setFailpoint()
	c.open()
	c.subscribeAll()
	if c.spec.IsBeside {
		c.workBeside()
		return
	}
	if c.spec.Standby > 0 {
		c.standBy()
		return
	}
	if err := c.bus.Start(context.Background()); err != nil {
		panic(err)
	}
	report("G")
	if c.spec.Mail == mailLate {
		time.AfterFunc(15*time.Millisecond, func() { c.subscribe(subMail) })
	}
	switch {
	case c.spec.Quiet:
		c.quiet()
	case c.spec.Recover:
		time.Sleep(time.Minute)
	default:
		c.work()
	}
}

// setFailpoint makes the process kill itself at the failpoint.
func (c *crashChild) setFailpoint() {
	if c.spec.Failpoint == "" {
		return
	}
	var hits atomic.Int64
	setFailpoint(func(name string) {
		if name == c.spec.Failpoint && hits.Add(1) == int64(c.spec.Hit) {
			report("T", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
}

func (c *crashChild) open() {
	opts := []Option{WithLogger(logOfErrors())}
	if c.spec.History > 0 {
		opts = append(opts, WithHistory(c.spec.History))
	}
	if c.spec.IsBeside || c.spec.Standby > 0 {
		opts = append(opts, MustExist())
	}
	before := time.Now()
	store, err := Open(context.Background(), c.spec.Path, opts...)
	if err != nil {
		panic(err)
	}
	store.cfg.checkpointAt = c.spec.Checkpoint
	if !c.spec.IsBeside && c.spec.Standby == 0 {
		report("O", time.Since(before).Microseconds())
	}
	busOpts := []eventbus.Option{
		eventbus.WithStore(store), eventbus.WithLogger(logOfErrors()),
		eventbus.WithQueueCapacity(c.spec.Queue), eventbus.WithConcurrency(c.spec.Workers),
		eventbus.WithRetry(eventbus.MaxRetries(crashRetries), eventbus.BaseDelay(5*time.Millisecond), eventbus.MaxDelay(20*time.Millisecond)),
	}
	if c.spec.Isolation {
		busOpts = append(busOpts, eventbus.WithIsolation())
	}
	if c.spec.Standby > 0 {
		busOpts = append(busOpts, eventbus.WithStore(&witnessedLease{Store: store, standby: c.spec.Standby}), eventbus.WithStandby())
	}
	bus, err := eventbus.New(busOpts...)
	if err != nil {
		panic(err)
	}
	c.store, c.bus, c.subs = store, bus, make(map[string]*eventbus.Subscription)
}

// logOfErrors passes error entries to the parent: only a store failure that the parent planned makes
// some.
func logOfErrors() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), witnessSyncer{}, zap.ErrorLevel))
}

type witnessSyncer struct{}

func (witnessSyncer) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte(`"msg":"event dead-lettered"`)) { // handlers fail on purpose
		report("L", string(b))
	}
	return len(b), nil
}
func (witnessSyncer) Sync() error { return nil }

func (c *crashChild) subscribeAll() {
	for _, sub := range []string{subStock, subShip, subBill} {
		c.subs[sub] = c.subscribe(sub)
	}
	if c.spec.Mail == mailFirst || c.spec.Mail == mailLeaves && !c.spec.IsBeside {
		c.subs[subMail] = c.subscribe(subMail)
	}
	if c.spec.Pause && !c.spec.IsBeside && c.spec.Standby == 0 {
		_ = c.subs[subShip].Pause()
	}
}

func (c *crashChild) subscribe(sub string) *eventbus.Subscription {
	opts := []eventbus.SubscribeOption{eventbus.Named(sub)}
	switch sub {
	case subStock:
		opts = append(opts, eventbus.Circuit(eventbus.NoCircuit()))
	case subShip:
		opts = append(opts, eventbus.Concurrency(2), eventbus.Circuit(eventbus.NoCircuit()))
	case subMail:
		opts = []eventbus.SubscribeOption{eventbus.Named(mailName(c.spec.Life))}
		var formerly []string
		for life := c.spec.Born; life < c.spec.Life; life++ {
			formerly = append(formerly, mailName(life))
		}
		opts = append(opts, eventbus.Formerly(formerly...))
		fallthrough
	default:
		opts = append(opts, eventbus.Circuit(eventbus.OpenFor(30*time.Millisecond)))
	}
	s, err := c.bus.Subscribe(subPatterns[sub], c.handler(sub), opts...)
	if errors.Is(err, eventbus.ErrShutdown) {
		return nil
	}
	if err != nil {
		panic(err)
	}
	return s
}

func (c *crashChild) handler(sub string) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		var p crashPayload
		raw := e.Payload.(json.RawMessage)
		if err := json.Unmarshal(raw, &p); err != nil {
			panic(err)
		}
		d, _ := eventbus.FromContext(ctx)
		report("S", p.Name, sub, d.Attempt, d.Replays, contentHash(e.Type, e.Key, e.Metadata.Get("name"), raw), e.ID, time.Now().UnixMilli())
		b := behaviourOf(c.spec.Seed, p.Name, sub, d.Attempt, d.Replays)
		if b.publish {
			c.publish(ctx, fmt.Sprintf("%d.h%d.%d", c.spec.Life, c.spec.Standby, c.nested.Add(1)), "mail.x", "", 0, eventbus.EventID{})
		}
		if !c.emitChildren(ctx, p.Name, sub) {
			return ctx.Err() // no outcome
		}
		if b.sleep > 0 && !c.spec.Quiet {
			time.Sleep(b.sleep)
		}
		if ctx.Err() != nil {
			return ctx.Err() // shutdown: no outcome
		}
		report("R", p.Name, sub, d.Attempt, d.Replays, b.result)
		return b.err(failureText(p.Name, sub, d.Attempt, d.Replays))
	}
}

// work publishes and operates until the process is killed or its shutdown ends.
func (c *crashChild) work() {
	c.publishAgain()
	for p := range c.spec.Publishers {
		c.working.Go(func() { newPublisher(c, p).run() })
	}
	c.working.Go(c.operate)
	if c.spec.Tx {
		c.working.Go(c.transact)
	}
	if c.spec.Fault {
		time.AfterFunc(20*time.Millisecond, c.fault)
	}
	switch {
	case c.spec.Shutdown > 0:
		time.Sleep(c.spec.Shutdown)
		c.shutdown()
	case c.spec.Idle:
		time.Sleep(20 * time.Millisecond)
		close(c.stop)
		time.Sleep(time.Minute)
	default:
		time.Sleep(time.Minute)
	}
}

func (c *crashChild) shutdown() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if c.spec.Hurry {
		time.AfterFunc(5*time.Millisecond, cancel)
	}
	report("Z")
	err := c.bus.Shutdown(ctx)
	var left *eventbus.ShutdownError
	report("ZA", err == nil || errors.As(err, &left), err)
	close(c.stop)
	c.working.Wait()
}

// quiet waits until everything is settled.
func (c *crashChild) quiet() {
	// Requests of earlier processes, such as Pause before Start, are carried out when the bus has the lease.
	for range 1000 {
		if requests, err := c.store.Requests(context.Background(), driver.RequestQuery{Limit: 1}); err != nil || len(requests) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := errors.Join(c.pauseStock(false, 0), c.subs[subShip].Resume(), c.subs[subBill].Resume()); err != nil {
		panic(err)
	}
	ctx := context.Background()
	deadline := time.Now().Add(30 * time.Second)
	for {
		stats, err := c.store.Stats(ctx)
		if err != nil {
			panic(err)
		}
		if stats.Unsettled() == 0 {
			break
		}
		if time.Now().After(deadline) {
			report("V", fmt.Sprintf("not settled after 30 s: %+v; ledger %+v", stats, c.bus.Metrics().Ledger))
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if !c.bus.Metrics().Ledger.Balanced() {
		time.Sleep(50 * time.Millisecond)
		if l := c.bus.Metrics().Ledger; !l.Balanced() {
			report("V", fmt.Sprintf("ledger does not balance: %+v", l))
		}
	}
	c.shutdown()
	runtime.GC()
	time.Sleep(10 * time.Millisecond)
	entries, _ := os.ReadDir("/proc/self/fd")
	report("Q", runtime.NumGoroutine(), len(entries))
}
