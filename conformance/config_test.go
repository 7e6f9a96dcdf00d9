package conformance

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Whatever is set in a Config reaches the machinery.
func TestConfigIsHandedOn(t *testing.T) {
	t.Parallel()
	var cfg Config
	v := reflect.ValueOf(&cfg).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Func:
			f.Set(reflect.MakeFunc(f.Type(), nil))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
		case reflect.String:
			f.SetString("set")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint64:
			f.SetUint(1)
		default:
			f.SetInt(1)
		}
	}
	taken := reflect.ValueOf(cfg.engine())
	assert.Equal(t, v.NumField(), taken.NumField())
	for i := range taken.NumField() {
		assert.False(t, taken.Field(i).IsZero(), "Config.%s is lost", taken.Type().Field(i).Name)
	}
}
