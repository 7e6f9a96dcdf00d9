package backend_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// full sets every field of a struct to something else than its zero value.
func full(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("text")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(365*24*time.Hour + time.Millisecond)) // more than a float's digits, in nanoseconds
		case reflect.Uint64:
			f.SetUint(1<<53 - 1)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			f.Index(0).SetString("item")
		case reflect.Struct:
			if f.Type() == reflect.TypeFor[time.Time]() {
				f.Set(reflect.ValueOf(time.Unix(1795218446, 0).UTC()))
			} else {
				full(t, f)
			}
		default:
			t.Fatalf("a field of kind %s; teach this test how to set it", f.Kind())
		}
	}
}

// Durations have their unit in the name, and every field comes back.
func TestJSON(t *testing.T) {
	t.Parallel()
	for _, v := range []any{new(backend.Guarantees), new(backend.Record)} {
		full(t, reflect.ValueOf(v).Elem())
		text, err := json.Marshal(v)
		require.NoError(t, err)
		back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		require.NoError(t, json.Unmarshal(text, back))
		assert.Equal(t, v, back, "%s", text)
	}
	g := backend.Guarantees{MinTTL: 100 * time.Millisecond, TTLGrain: time.Second, MaxTTL: 365 * 24 * time.Hour}
	text, err := json.Marshal(g)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	assert.InDelta(t, 0.1, fields["min_ttl_seconds"], 0)
	assert.InDelta(t, 1.0, fields["ttl_grain_seconds"], 0)
	assert.InDelta(t, 31536000.0, fields["max_ttl_seconds"], 0)
	assert.InDelta(t, 0.0, fields["takeover_lag_seconds"], 0)
	for name := range fields {
		assert.NotContains(t, []string{"min_ttl", "max_ttl", "ttl_grain", "takeover_lag"}, name, "a duration without its unit")
	}
	for _, wrong := range []string{`{"min_ttl_seconds": "1s"}`, `{"min_ttl_seconds": 1e300}`} {
		assert.Error(t, json.Unmarshal([]byte(wrong), new(backend.Guarantees)), wrong)
	}
	assert.Error(t, json.Unmarshal([]byte(`{"remaining_seconds": []}`), new(backend.Record)))
}
