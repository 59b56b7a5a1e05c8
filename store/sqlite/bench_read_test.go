package sqlite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// BenchmarkLetters reads pages of 100 out of 1,000,000 dead letters, 20,000 with -short.
func BenchmarkLetters(b *testing.B) {
	total := 1_000_000
	if testing.Short() {
		total = 20_000
	}
	s := openAt(b, benchPath(b))
	reasons := []eventbus.Reason{eventbus.ReasonExhausted, eventbus.ReasonPermanent, eventbus.ReasonExpired}
	var middle driver.ID
	var event driver.ID
	var fingerprint string
	for i := 0; i < total; {
		batch := &driver.Batch{}
		for ; len(batch.Bury) < 1000; i++ {
			l := letterFor(fmt.Sprintf("subscription-%d", i%7), reasons[i%3], fmt.Sprintf("error of kind %c", 'a'+i%20), func(l *eventbus.DeadLetter) {
				l.Event.Key = fmt.Sprint("key ", i%2000)
				l.DiedAt = t0.Add(time.Duration(i) * time.Millisecond)
			})
			batch.Bury = append(batch.Bury, l)
			if i == total/2 {
				middle, event, fingerprint = l.ID, l.Event, l.Fingerprint
			}
		}
		require.NoError(b, submit(s, batch))
	}
	for name, q := range map[string]driver.LetterQuery{
		"all":                 {},
		"all from the middle": {Before: middle},
		"subscription":        {Subscriptions: []string{"subscription-3"}},
		"reason":              {Reason: string(eventbus.ReasonPermanent), Before: middle},
		"both":                {Subscriptions: []string{"subscription-3"}, Reason: string(eventbus.ReasonPermanent), Before: middle},
		"fingerprint":         {Fingerprint: fingerprint},
		"event":               {Event: event},
		"key":                 {Key: "key 77"},
		"key and reason":      {Key: "key 77", Reason: string(eventbus.ReasonExpired)},
		"some seconds":        {Since: t0.Add(5 * time.Second), Until: t0.Add(10 * time.Second)},
		"type":                {Type: func(eventType string) bool { return strings.HasPrefix(eventType, "order.") }},
	} {
		b.Run(name, func(b *testing.B) {
			q.Limit = 100
			for b.Loop() {
				page, err := s.Letters(context.Background(), q)
				require.NoError(b, err)
				require.NotEmpty(b, page.Letters)
			}
		})
	}
	b.Run("groups", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, s.Groups(context.Background(), driver.LetterQuery{}, func(*driver.Group) error { return nil }))
		}
	})
}

// BenchmarkRecover opens a file with 100,000 records of a process that was killed, and claims all.
func BenchmarkRecover(b *testing.B) {
	if testing.Short() {
		b.Skip("takes long")
	}
	const records = 100_000
	path := benchPath(b)
	s := openAt(b, path)
	for i := 0; i < records; {
		batch := &driver.Batch{}
		for ; len(batch.New) < 1000; i++ {
			batch.New = append(batch.New, benchRecord())
		}
		require.NoError(b, submit(s, batch))
	}
	var opening, first, all time.Duration
	for b.Loop() {
		b.StopTimer()
		crash(b, s)
		b.StartTimer()
		began := time.Now()
		var err error
		s, err = Open(context.Background(), path)
		require.NoError(b, err)
		opening += time.Since(began)
		n := 0
		for more := true; more; {
			c, err := s.Claim(context.Background(), driver.ClaimQuery{Limit: 4096})
			require.NoError(b, err)
			if n += len(c.Records); n == len(c.Records) {
				first += time.Since(began)
			}
			more = c.More
		}
		all += time.Since(began)
		require.Equal(b, records, n)
	}
	closeStore(b, s)
	for name, d := range map[string]time.Duration{"ms/open": opening, "ms/first": first, "ms/all": all} {
		b.ReportMetric(d.Seconds()*1000/float64(b.N), name)
	}
}
