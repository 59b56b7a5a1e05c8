package sqlite

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// BenchmarkUpdate changes leased records, 100 in a batch: every other time they are ready again.
func BenchmarkUpdate(b *testing.B) {
	for name, state := range map[string]driver.State{"waiting": driver.Waiting, "parked": driver.Parked} {
		b.Run(name, func(b *testing.B) {
			s := openAt(b, benchPath(b))
			batch := &driver.Batch{}
			for range 100 {
				batch.New = append(batch.New, benchRecord())
			}
			require.NoError(b, submit(s, batch))
			changed, again := &driver.Batch{}, &driver.Batch{}
			for _, r := range batch.New {
				u := driver.Record{Ref: r.Ref, State: state, Leased: true, Progress: []byte(`{"attempts":1,"next":1}`)}
				if u.State == driver.Waiting {
					u.Due = t0
				} else {
					u.Door = "billing"
				}
				changed.Update = append(changed.Update, &u)
				again.Update = append(again.Update, &driver.Record{Ref: r.Ref, Leased: true})
			}
			b.ResetTimer()
			for n := 0; n < b.N; n += 200 {
				require.NoError(b, submit(s, changed))
				require.NoError(b, submit(s, again))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkClaimParked claims 100 records and frees them: of a door with 100,000 of one destination, and behind those 10
// of each of 100 others.
func BenchmarkClaimParked(b *testing.B) {
	s := openAt(b, benchPath(b))
	const many, others = 100_000, 100
	var names []string
	for i := range others {
		names = append(names, fmt.Sprint("other ", i))
	}
	for i := 0; i < many+10*others; {
		batch := &driver.Batch{}
		for range 1000 {
			r := free(benchRecord())
			if r.State, r.Door, r.Destination = driver.Parked, "billing", "many"; i >= many {
				r.Destination = names[i%others]
			}
			batch.New = append(batch.New, r)
			i++
		}
		require.NoError(b, submit(s, batch))
	}
	for name, q := range map[string]driver.ClaimQuery{
		"all": {}, "destination=large": {Destinations: []string{"many"}}, "destination=small": {Destinations: names[:10]},
		"destinations": {Destinations: append(names, "many")}, "other=small": {OtherThan: names}, "other=large": {OtherThan: []string{"many"}},
	} {
		b.Run(name, func(b *testing.B) {
			q.Kind, q.Limit, q.Doors = driver.ClaimParked, 100, []string{"billing"}
			for b.Loop() {
				c, err := s.Claim(context.Background(), q)
				require.NoError(b, err)
				require.Len(b, c.Records, 100)
				batch := &driver.Batch{}
				for _, r := range c.Records {
					r.Leased = false
					batch.Update = append(batch.Update, r)
				}
				require.NoError(b, submit(s, batch))
			}
		})
	}
}
