//go:build !linux

package proxy

import "time"

func sleep(d time.Duration) { time.Sleep(d) }
