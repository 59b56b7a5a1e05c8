package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/surebus/eventbus"
)

// filler sets every exported field to a value that no other field has, so that a store which loses
// or confuses a field fails a test. It covers fields that are added later.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(noon.Add(time.Duration(f.n)*time.Hour + time.Duration(f.n))))
		return
	case eventbus.EventID, eventbus.LetterID:
		v.Set(reflect.ValueOf(eventbus.NewEventID()).Convert(v.Type()))
		return
	case eventbus.EventMetadata:
		var metadata eventbus.EventMetadata
		if err := json.Unmarshal(fmt.Appendf(nil, `{"z%d":"ümlaut \u0000","a":"","m":"x'\"\\"}`, f.n), &metadata); err != nil {
			panic(err)
		}
		v.Set(reflect.ValueOf(metadata))
		return
	case json.RawMessage: // as json.Marshal writes it
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"n":%d,"text":"ü'\\u003c"}`, f.n))))
		return
	case []byte:
		v.SetBytes(append([]byte{0, 0xff, 0xfe, '\'', '\n'}, fmt.Sprint(f.n)...))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d 'ü\"%%", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(uint64(f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i))
			}
		}
	case reflect.Interface:
		if v.Type() == reflect.TypeFor[any]() {
			v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{ "n": %d }`, f.n))))
		}
	default:
		panic(fmt.Sprintf("storetest: no value for a %s", v.Type()))
	}
}

// fullRecord returns a new record in which every field is set.
func fullRecord() *eventbus.Record {
	r := new(eventbus.Record)
	(&filler{}).fill(reflect.ValueOf(r).Elem())
	r.Ref, r.Position, r.State = 0, 0, eventbus.RecordReady
	r.Crashes, r.Own, r.Leased, r.Suspect = 0, false, false, false
	return r
}

// fullLetter returns a new letter in which every field is set.
func fullLetter() *eventbus.DeadLetter {
	l := new(eventbus.DeadLetter)
	(&filler{}).fill(reflect.ValueOf(l).Elem())
	l.Reason, l.Fingerprint = eventbus.ReasonExhausted, ""
	l.Fingerprint = l.Group().Fingerprint
	return l
}
