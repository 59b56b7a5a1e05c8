package storetest

import (
	"fmt"
	"reflect"
	"time"

	"github.com/surebus/eventbus/driver"
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
	case driver.ID:
		v.Set(reflect.ValueOf(newID()))
		return
	case []byte: // as json.Marshal writes it: a store may embed the parts that are JSON
		v.SetBytes(fmt.Appendf(nil, `{"n":%d,"text":"ü'\\u003c \\u0000","z":"","a":null}`, f.n))
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
			f.fill(v.Field(i))
		}
	default:
		panic(fmt.Sprintf("storetest: no value for a %s", v.Type()))
	}
}

// filled returns a value in which every field is set.
func filled[T any]() *T {
	v := new(T)
	(&filler{}).fill(reflect.ValueOf(v).Elem())
	return v
}

// anyBytes returns bytes that are no text.
func anyBytes(text string) []byte { return append([]byte{0, 0xff, 0xfe, '\'', '\n'}, text...) }

// fullRecord returns a new record in which every field is set.
func fullRecord() *driver.Record {
	r := filled[driver.Record]()
	r.Payload = anyBytes("payload")
	r.Ref, r.Position, r.State = 0, 0, driver.Ready
	r.Crashes, r.Own, r.Leased, r.Suspect = 0, false, false, false
	r.Slot = 0
	return r
}

// fullIncoming returns a new incoming event in which every field is set that a store keeps.
func fullIncoming() *driver.Incoming {
	in := filled[driver.Incoming]()
	in.ID = 0
	r := fullRecord()
	in.Record = r
	r.State, r.Door, r.Destination, r.Progress = driver.Scheduled, "", "", nil
	return in
}

// fullLetter returns a new letter in which every field is set.
func fullLetter() *driver.Letter {
	l := filled[driver.Letter]()
	l.Payload, l.Original = anyBytes("payload"), anyBytes("original")
	return l
}

// fullDedupe returns an entry in which every field is set.
func fullDedupe() driver.Dedupe {
	d := *filled[driver.Dedupe]()
	return d
}
