//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(replicaVariable); dsn != "" {
		os.Exit(replicaMain(context.Background(), dsn))
	}
	os.Exit(m.Run())
}

func TestRun_TheBooksBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 20 s")
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, os.Stderr), "%s", &out)
	require.Regexp(t, `(?m)^(OK: [1-9]\d* orders, and a bill for each|SKIP: .*)$`, out.String())
	t.Log(out.String())
}
