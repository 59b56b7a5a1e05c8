package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// The line is drawn at most ten times a second, and with the number of letters as far as it is known.
func TestBulkProgress_WithAndWithoutATotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for total, last := range map[int]string{0: "export 1,000 letters", 1000: "export [####################] 100% 1,000 of 1,000"} {
			var out strings.Builder
			draw := bulkProgress(term.NewProgress(&out), "export")
			for i := range 1000 {
				draw(eventbus.BulkProgress{Matched: total, Done: i + 1})
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			draw(eventbus.BulkProgress{Matched: total, Done: 1000})
			lines := strings.Split(out.String(), "\r")
			require.Equal(t, last, strings.TrimSpace(lines[len(lines)-1]))
			require.LessOrEqual(t, len(lines), 14)
		}
	})
}
