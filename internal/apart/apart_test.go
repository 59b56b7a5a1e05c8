package apart

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	text := func(v any) string { return fmt.Sprint(v) }
	for name, c := range map[string]struct {
		f        func()
		panicked string
	}{
		"returns":               {f: func() {}},
		"panics":                {f: func() { panic("no") }, panicked: "no"},
		"panics without a text": {f: func() { panic("") }, panicked: `""`},
		"ends its goroutine":    {f: runtime.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			panicked, done := Run(nil, nil, text, c.f)
			require.Equal(t, c.panicked, panicked)
			require.True(t, done)
		})
	}
}

func TestRun_WaitsForTheGraceOnly(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, channels := range map[string][2]chan struct{}{"stop": {closed, nil}, "late": {nil, closed}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, done := Run(channels[0], channels[1], nil, func() { time.Sleep(Grace / 2) })
				require.True(t, done)
				_, done = Run(channels[0], channels[1], nil, func() { time.Sleep(time.Hour) })
				require.False(t, done)
				require.Equal(t, Grace/2+Grace, time.Since(began))
				time.Sleep(time.Hour) // the code returns
			})
		})
	}
}
