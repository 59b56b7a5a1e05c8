package eventbus

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// The JSON in records is read by later versions: every field of an earlier one is read, and written as it was.
func TestC4_TheJSONOfRecordsIsStable(t *testing.T) {
	const failure = `{"attempt":1,"replays":1,"subscription":"mail","time":"2026-03-04T12:30:15.123456789Z","duration":1500000000,` +
		`"error":"boom","class":"*net.OpError","details":{"code":7},"rule":{"position":1,"name":"busy","subscription":"mail"}}`
	r := &driver.Record{
		Targets:  []string{"mail", "audit"},
		Metadata: []byte(`{"trace":"t-1"}`),
		Replay: []byte(`{"began":"2026-03-04T12:30:15.123456789Z","count":1,"succeeded":["audit"],"history":[` + failure + `],` +
			`"history_omitted":1,"edited":true,"original":"eyJvcmRlciI6N30="}`),
		Progress: []byte(`{"next":1,"skipped":[1],"attempts":1,"failures":[` + failure + `],"first_failures":1,"omitted":1,` +
			`"omitted_here":1,"previous_delay":1500000000,"parked_for":1500000000,` +
			`"budgets":[{"subscription":"mail","rule":1,"failures":1,"previous_delay":1500000000}],"part":true}`),
	}
	decoded, err := decodeRecord(r)
	require.NoError(t, err)
	var w batch
	require.Equal(t, string(r.Metadata), string(w.encode(decoded.metadata)))
	require.Equal(t, string(r.Replay), string(w.encode(decoded.replay)))
	require.Equal(t, string(r.Progress), string(w.encode(decoded.progress)))
	for text, into := range map[string]any{string(r.Replay): new(recordReplay), string(r.Progress): new(recordProgress)} {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(into))
	}
	for _, damaged := range []driver.Record{
		{Metadata: []byte(`{"a":1}`)},
		{Replay: []byte(`{`)},
		{Progress: []byte(`[]`)},
		{Progress: []byte(`{"next":3}`), Targets: r.Targets},
		{Progress: []byte(`{"next":2}`), Targets: []string{"the only one"}},
		{Progress: []byte(`{"next":-1}`)},
	} {
		_, err := decodeRecord(&damaged)
		require.ErrorContains(t, err, "cannot be decoded")
		require.ErrorAs(t, err, new(*DecodeError))
	}
	_, err = decodeRecord(&driver.Record{Progress: []byte(`{"next":2,"skipped":[1]}`), Targets: r.Targets}) // it only settles
	require.NoError(t, err)
}

// What cannot be encoded makes the store refuse the batch, in order.
func TestC4_WhatCannotBeEncodedIsRefused(t *testing.T) {
	var w batch
	w.encode(func() {})
	require.Error(t, w.err)
	w = batch{}
	r := &driver.Record{Progress: []byte("x")}
	require.Equal(t, &record{Record: r}, w.decode(r))
	require.Error(t, w.err)
}
