package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/surebus/eventbus/mwl"
)

// shop is the services that the definitions call, and their books.
type shop struct {
	mu                        sync.Mutex
	reserved                  map[string]bool
	paid                      map[string]int // cents, by order
	tried                     map[string]int // asks of the bank and for parcels
	shipped                   map[string]bool
	charged, refunded, earned int // cents
}

func newShop() *shop {
	return &shop{reserved: make(map[string]bool), paid: make(map[string]int), tried: make(map[string]int), shipped: make(map[string]bool)}
}

// refusal is a failure that says whether to try again.
func refusal(code, message string, retryable bool) error {
	return &mwl.Failure{Code: code, Message: message, Retryable: &retryable}
}

// providers are the catalog entries of the services. Each runs under the shop's lock.
func (s *shop) providers() []mwl.CatalogEntry {
	entry := func(name, prefix, properties string, codes []string, call func(with map[string]any) (any, error)) mwl.CatalogEntry {
		return mwl.CallProvider{
			URI: "mwl:provider.call/shop/" + name + "/v1", CodePrefix: prefix,
			Parameters: json.RawMessage(`{"type": "object", "properties": {` + properties + `}}`),
			Failures:   mwl.FailureCatalog{Closed: codes},
			Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				value, err := call(r.With)
				return mwl.CallResponse{Value: value}, err
			},
		}
	}
	const order, items, cents = `"order": {"type": "string"}`, `"items": {"type": "object"}`, `"cents": {"type": "integer"}`
	return []mwl.CatalogEntry{
		entry("reserve", "Reserve", order+","+items, nil, func(with map[string]any) (any, error) {
			s.reserved[text(with, "order")] = true
			return true, nil
		}),
		entry("release", "Release", order+","+items, nil, func(with map[string]any) (any, error) {
			delete(s.reserved, text(with, "order"))
			return true, nil
		}),
		entry("charge", "Charge", order+","+cents, []string{"Provider.Call.Charge.Busy", "Provider.Call.Charge.Declined"}, s.charge),
		entry("refund", "Refund", order+","+cents, nil, func(with map[string]any) (any, error) {
			s.refunded += s.paid[text(with, "order")]
			delete(s.paid, text(with, "order"))
			return true, nil
		}),
		entry("ship", "Ship", order+","+items+`, "address": {"type": ["string", "null"]}`, []string{"Provider.Call.Ship.NoAddress"}, s.ship),
		entry("track", "Track", `"parcel": {"type": "string"}`, nil, func(with map[string]any) (any, error) {
			parcel := text(with, "parcel")
			s.tried[parcel]++
			return map[string]any{"arrived": s.tried[parcel] > 2 && !strings.HasSuffix(parcel, "lost")}, nil
		}),
		entry("quote", "Quote", `"supplier": {"type": "string"}`, []string{"Provider.Call.Quote.Closed"}, func(with map[string]any) (any, error) {
			price, ok := map[string]int{"north": 900, "south": 850, "east": 990, "west": 870}[text(with, "supplier")]
			if !ok {
				return nil, refusal("Provider.Call.Quote.Closed", "the supplier does not answer", true)
			}
			return price, nil
		}),
	}
}

// charge fails once for the orders whose number ends in 7, and declines those that end in 3.
func (s *shop) charge(with map[string]any) (any, error) {
	order := text(with, "order")
	s.tried[order]++
	switch {
	case strings.HasSuffix(order, "3"):
		return nil, refusal("Provider.Call.Charge.Declined", "the card of "+order+" is declined", false)
	case strings.HasSuffix(order, "7") && s.tried[order] == 1:
		return nil, refusal("Provider.Call.Charge.Busy", "the bank is busy", true)
	}
	cents, _ := with["cents"].(float64)
	s.charged += int(cents)
	s.paid[order] = int(cents)
	return true, nil
}

// ship needs an address for moka pots, which are insured.
func (s *shop) ship(with map[string]any) (any, error) {
	order := text(with, "order")
	items, _ := with["items"].(map[string]any)
	if _, insured := items["moka-pot-3"]; insured && text(with, "address") == "" {
		return nil, refusal("Provider.Call.Ship.NoAddress", "insured parcels need an address", false)
	}
	s.shipped[order] = true
	s.earned += s.paid[order]
	return true, nil
}

// balanced reports whether the books agree with the number of orders that succeeded.
func (s *shop) balanced(succeeded int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.charged-s.refunded != s.earned || len(s.shipped) != succeeded || len(s.reserved) != succeeded {
		return fmt.Errorf("the shop's books do not balance: %d charged, %d refunded, %d earned, %d reserved, %d shipped, %d succeeded",
			s.charged, s.refunded, s.earned, len(s.reserved), len(s.shipped), succeeded)
	}
	return nil
}

// text is a text argument; "" if there is none.
func text(with map[string]any, name string) string {
	v, _ := with[name].(string)
	return v
}
