package convert_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/surebus/eventbus/internal/convert"
)

type placed struct {
	ID       string
	Customer struct{ Name, Mail string }
	Lines    []struct {
		SKU   string
		Cents int64
	}
	At time.Time
}

var placedJSON = json.RawMessage(`{"ID":"o-1","Customer":{"Name":"Ada","Mail":"ada@example.org"},` +
	`"Lines":[{"SKU":"a","Cents":100},{"SKU":"b","Cents":250}],"At":"2026-01-02T03:04:05Z"}`)

// A type without interfaces costs what encoding/json costs.
func BenchmarkTo(b *testing.B) {
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(placedJSON, new(placed)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("struct", benchmarkTo[placed])
	b.Run("map", benchmarkTo[map[string]any])
}

func benchmarkTo[T any](b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := convert.To[T](placedJSON, false); err != nil {
			b.Fatal(err)
		}
	}
}
