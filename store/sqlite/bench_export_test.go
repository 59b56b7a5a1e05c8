package sqlite_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// BenchmarkExport exports 20,000 letters, 2,000 with -short.
func BenchmarkExport(b *testing.B) {
	total := 20_000
	if testing.Short() {
		total = 2_000
	}
	path := newPath(b)
	withLetters(b, path, total)
	p := begin(b, path)
	b.ResetTimer()
	for b.Loop() {
		report, err := p.DLQ().Export(b.Context(), io.Discard, eventbus.LetterQuery{})
		require.NoError(b, err)
		require.Equal(b, total, report.Exported)
	}
	b.ReportMetric(float64(total*b.N)/b.Elapsed().Seconds(), "letters/s")
	p.end()
}

// BenchmarkImport imports 20,000 letters, 2,000 with -short.
func BenchmarkImport(b *testing.B) {
	total := 20_000
	if testing.Short() {
		total = 2_000
	}
	from := newPath(b)
	withLetters(b, from, total)
	p := begin(b, from)
	var lines bytes.Buffer
	_, err := p.DLQ().Export(b.Context(), &lines, eventbus.LetterQuery{})
	require.NoError(b, err)
	p.end()
	for b.Loop() {
		b.StopTimer()
		to := begin(b, newPath(b))
		b.StartTimer()
		report, err := to.DLQ().Import(b.Context(), bytes.NewReader(lines.Bytes()))
		b.StopTimer()
		require.NoError(b, err)
		require.Equal(b, total, report.Imported)
		to.end()
		b.StartTimer()
	}
	b.ReportMetric(float64(total*b.N)/b.Elapsed().Seconds(), "letters/s")
}
