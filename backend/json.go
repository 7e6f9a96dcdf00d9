package backend

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// In JSON every duration is a number of seconds, in a field whose name says so.

// seconds is a duration in JSON.
type seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *seconds) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	// Not by a multiplication, which would round.
	d, err := time.ParseDuration(strconv.FormatFloat(f, 'f', -1, 64) + "s")
	if err != nil {
		return fmt.Errorf("%v is not a number of seconds that a duration can have", f)
	}
	*s = seconds(d)
	return nil
}

type (
	plainGuarantees Guarantees
	jsonGuarantees  struct {
		plainGuarantees
		MinTTL      seconds `json:"min_ttl_seconds"`
		MaxTTL      seconds `json:"max_ttl_seconds"`
		TTLGrain    seconds `json:"ttl_grain_seconds"`
		TakeoverLag seconds `json:"takeover_lag_seconds"`
	}
)

// MarshalJSON writes durations as seconds, such as "min_ttl_seconds": 0.1.
func (g Guarantees) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonGuarantees{plainGuarantees(g), seconds(g.MinTTL), seconds(g.MaxTTL), seconds(g.TTLGrain), seconds(g.TakeoverLag)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (g *Guarantees) UnmarshalJSON(data []byte) error {
	var j jsonGuarantees
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*g = Guarantees(j.plainGuarantees)
	g.MinTTL, g.MaxTTL = time.Duration(j.MinTTL), time.Duration(j.MaxTTL)
	g.TTLGrain, g.TakeoverLag = time.Duration(j.TTLGrain), time.Duration(j.TakeoverLag)
	return nil
}

type (
	plainRecord Record
	jsonRecord  struct {
		plainRecord
		Remaining seconds `json:"remaining_seconds"`
	}
)

// MarshalJSON writes the time that remains as "remaining_seconds".
func (r Record) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonRecord{plainRecord(r), seconds(r.Remaining)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Record) UnmarshalJSON(data []byte) error {
	var j jsonRecord
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*r = Record(j.plainRecord)
	r.Remaining = time.Duration(j.Remaining)
	return nil
}
