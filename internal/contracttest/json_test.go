package contracttest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var update = flag.Bool("update", false, "write the golden files")

// jsonTypes are the types with a stable form in JSON. An API and its clients read them.
var jsonTypes = map[string]any{
	"metrics":         &eventbus.Metrics{},
	"letter":          &eventbus.DeadLetter{},
	"letter_page":     &eventbus.LetterPage{},
	"letter_group":    &eventbus.LetterGroup{},
	"letter_query":    &eventbus.LetterQuery{},
	"replay_report":   &eventbus.ReplayReport{},
	"replay_preview":  &eventbus.ReplayPreview{},
	"purge_report":    &eventbus.PurgeReport{},
	"bulk_progress":   &eventbus.BulkProgress{},
	"event_status":    &eventbus.EventStatus{},
	"dispatch_page":   &eventbus.DispatchPage{},
	"plan":            &eventbus.Plan{},
	"directive":       &eventbus.Directive{},
	"catalog":         &eventbus.Catalog{},
	"audit_page":      &eventbus.AuditPage{},
	"action_preview":  &eventbus.ActionPreview{},
	"actions_report":  &eventbus.ActionsReport{},
	"attempt":         &eventbus.EndedAttempt{},
	"retry":           &eventbus.ScheduledRetry{},
	"circuit_change":  &eventbus.CircuitChange{},
	"slow_handler":    &eventbus.SlowHandler{},
	"abandoned":       &eventbus.AbandonedHandler{},
	"delivery":        &eventbus.Delivery{},
	"publish_result":  &eventbus.Result{},
	"import_report":   &eventbus.ImportReport{},
	"export_progress": &eventbus.ExportReport{},
}

// fillValue sets every exported field that JSON has to a value that is not zero.
func fillValue(v reflect.Value, name string) {
	at := time.Date(2026, 3, 4, 12, 30, 15, 123456789, time.UTC)
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = at
		return
	case *time.Duration:
		*x = 1500 * time.Millisecond
		return
	case *eventbus.EventMetadata:
		if err := json.Unmarshal([]byte(`{"trace":"t-1"}`), x); err != nil {
			panic(err)
		}
		return
	case *eventbus.EventID:
		x[0], x[15] = 1, 2
		return
	case *eventbus.LetterID:
		x[0], x[15] = 3, 4
		return
	case *eventbus.Reason:
		*x = eventbus.ReasonExhausted
		return
	case *json.RawMessage:
		*x = json.RawMessage(`"the details"`) // with no white space that indentation adds
		return
	case *[]byte:
		*x = []byte(`{"order":7}`)
		return
	case *any:
		*x = "the payload"
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("json") != "-" {
				fillValue(v.Field(i), f.Name)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillValue(v.Index(0), name)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fillValue(value, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("order.placed").Convert(v.Type().Key()), value)
	case reflect.String:
		v.SetString("the " + name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1.5)
	default:
		panic(v.Kind().String())
	}
}

// The JSON of these types is read by other programs: it changes only with a line in CHANGELOG.md.
// go test ./internal/contracttest -run TestJSON -args -update writes the files.
func TestJSON_StableAndThereAndBack(t *testing.T) {
	names := regexp.MustCompile(`"([^"]*)":`)
	for name, value := range jsonTypes {
		t.Run(name, func(t *testing.T) {
			fillValue(reflect.ValueOf(value).Elem(), name)
			text, err := json.MarshalIndent(value, "", "  ")
			require.NoError(t, err)
			text = append(text, '\n')
			golden := filepath.Join("testdata", name+".golden.json")
			if *update {
				require.NoError(t, os.WriteFile(golden, text, 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(text))
			for _, field := range names.FindAllSubmatch(text, -1) {
				require.Regexp(t, `^[a-z][a-z0-9_]*$|^order\.placed$`, string(field[1]))
			}
			back := reflect.New(reflect.TypeOf(value).Elem())
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.DisallowUnknownFields()
			require.NoError(t, decoder.Decode(back.Interface()))
			require.Equal(t, value, back.Interface())
		})
	}
}

// What is empty is an empty list, not null.
func TestJSON_EmptyListsAreLists(t *testing.T) {
	bus, _ := newBus(t)
	page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	dispatches, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{})
	require.NoError(t, err)
	id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
	status, err := bus.Event(t.Context(), id)
	require.NoError(t, err)
	for _, value := range []any{page, dispatches, status, bus.Metrics(), bus.Explain("x")} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		require.NotRegexp(t, `"(letters|dispatches|subscriptions|targets)":null`, string(text))
	}
}

func TestJSON_NamesOfConstants(t *testing.T) {
	for _, value := range []interface{ MarshalText() ([]byte, error) }{
		eventbus.CircuitHalfOpen, eventbus.CircuitUnknown, eventbus.DeadLettered, eventbus.DecorrelatedJitter, eventbus.DropWhenOpen,
		eventbus.DropNewestWhenFull,
	} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		back := reflect.New(reflect.TypeOf(value))
		require.NoError(t, json.Unmarshal(text, back.Interface()))
		require.Equal(t, value, back.Elem().Interface())
		require.ErrorContains(t, json.Unmarshal([]byte(`"sideways"`), back.Interface()), "must be one of")
		require.Equal(t, value, back.Elem().Interface(), "an error changes nothing")
	}
}

func TestJSON_ACatalogOfAnEarlierVersion(t *testing.T) {
	var c eventbus.Catalog
	require.NoError(t, json.Unmarshal([]byte(`{"timeout":30000000000,"orders":[{"subscription":"mail","pause":true,"by":"ann","at":"2026-01-02T03:04:05Z"}]}`), &c))
	require.Equal(t, 30*time.Second, c.Timeout)
	require.Equal(t, []eventbus.Directive{{Subscription: "mail", Pause: true, By: "ann", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}, c.Directives)
}
