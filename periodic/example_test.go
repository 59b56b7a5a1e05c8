package periodic_test

import (
	"context"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/periodic"
)

// A report on each morning. The mock clock of the bus stands for the time that passes.
func Example() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithClock(mock))
	if err != nil {
		panic(err)
	}
	sent := make(chan time.Time, 1)
	_, err = bus.Subscribe("report.daily", func(_ context.Context, e eventbus.Event) error {
		tick, _ := periodic.Tick(e)
		sent <- tick
		return nil
	})
	if err != nil {
		panic(err)
	}
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	daily, err := periodic.Every(bus, "0 8 * * *", "report.daily", nil, periodic.In(berlin), periodic.WithClock(mock))
	if err != nil {
		panic(err)
	}
	for range 2 {
		mock.Set(daily.Next())
		fmt.Println((<-sent).Format(time.RFC3339))
	}
	fmt.Println("next:", daily.Next().Format(time.RFC3339))
	daily.Stop()
	if err := bus.Shutdown(ctx); err != nil {
		panic(err)
	}
	// Output:
	// 2026-03-29T08:00:00+02:00
	// 2026-03-30T08:00:00+02:00
	// next: 2026-03-31T08:00:00+02:00
}
