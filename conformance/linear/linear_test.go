package linear

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

const ms = time.Millisecond

// by makes an operation of a caller.
func by(client int, kind conformance.OperationKind, hold int, from, to time.Duration) conformance.Operation {
	return conformance.Operation{Client: client, Who: "client 1", Kind: kind, Hold: hold, Call: from, Return: to}
}

func granted(client, hold int, token uint64, from, to time.Duration) conformance.Operation {
	op := by(client, conformance.Granted, hold, from, to)
	op.Token = token
	return op
}

func owned(op conformance.Operation, owner string) conformance.Operation {
	op.Owner = owner
	return op
}

func TestModel(t *testing.T) {
	t.Parallel()
	const (
		refused, mayGrant, kept = conformance.Refused, conformance.MayGrant, conformance.Kept
		released, ended, mayEnd = conformance.Released, conformance.Ended, conformance.MayEnd
		never                   = conformance.Never
	)
	first, gone := granted(0, 1, 7, 1*ms, 2*ms), by(0, released, 1, 10*ms, 11*ms)
	for name, c := range map[string]struct {
		sense bool
		ops   []conformance.Operation
	}{
		"one after the other": {true, []conformance.Operation{first, gone, granted(1, 2, 8, 12*ms, 13*ms)}},
		"a wait":              {true, []conformance.Operation{first, granted(1, 2, 8, 3*ms, 12*ms), gone}},
		"a second holder":     {false, []conformance.Operation{first, granted(1, 2, 8, 3*ms, 4*ms), gone}},
		"a token reset":       {false, []conformance.Operation{first, gone, granted(1, 2, 7, 12*ms, 13*ms)}},
		"a release that frees another's hold": {false, []conformance.Operation{
			first, gone, granted(1, 2, 8, 12*ms, 13*ms), by(0, released, 1, 14*ms, 15*ms), granted(2, 3, 9, 16*ms, 17*ms),
		}},
		"entering again":             {true, []conformance.Operation{owned(first, "A"), owned(granted(1, 2, 7, 3*ms, 4*ms), "A"), gone, by(1, kept, 2, 12*ms, 13*ms)}},
		"entering with a new token":  {false, []conformance.Operation{owned(first, "A"), owned(granted(1, 2, 8, 3*ms, 4*ms), "A"), gone}},
		"another owner enters":       {false, []conformance.Operation{owned(first, "A"), owned(granted(1, 2, 7, 3*ms, 4*ms), "B"), gone}},
		"no owner enters no owner":   {false, []conformance.Operation{first, granted(1, 2, 7, 3*ms, 4*ms), gone}},
		"free before the last":       {false, []conformance.Operation{owned(first, "A"), owned(granted(1, 2, 7, 3*ms, 4*ms), "A"), gone, granted(2, 3, 8, 12*ms, 13*ms), by(1, released, 2, 14*ms, 15*ms)}},
		"refused while held":         {true, []conformance.Operation{first, by(1, refused, 0, 3*ms, 4*ms), gone}},
		"refused while free":         {false, []conformance.Operation{first, gone, by(1, refused, 0, 12*ms, 13*ms)}},
		"refused to its owner":       {false, []conformance.Operation{owned(first, "A"), owned(by(1, refused, 0, 3*ms, 4*ms), "A"), gone}},
		"refused beside the release": {true, []conformance.Operation{first, by(1, refused, 0, 3*ms, 11*ms), gone}},
		"renewed when released":      {false, []conformance.Operation{first, gone, by(0, kept, 1, 12*ms, 13*ms)}},
		"ended for no reason":        {false, []conformance.Operation{first, by(0, ended, 1, 3*ms, 4*ms)}},
		"ran out":                    {true, []conformance.Operation{first, by(9, mayEnd, 1, 5*ms, never), granted(1, 2, 8, 6*ms, 7*ms), by(0, ended, 1, 8*ms, 9*ms)}},
		"ran out too early":          {false, []conformance.Operation{first, by(9, mayEnd, 1, 8*ms, never), granted(1, 2, 8, 6*ms, 7*ms)}},
		"an answer was lost, in the way": {true, []conformance.Operation{
			by(8, mayGrant, 1, 1*ms, never), by(9, mayEnd, 1, 1*ms, never), by(1, refused, 0, 3*ms, 4*ms), granted(1, 2, 5, 6*ms, 7*ms),
		}},
		"an answer was lost, in the way twice": {true, []conformance.Operation{
			by(8, mayGrant, 1, 1*ms, never), by(9, mayEnd, 1, 1*ms, never), by(1, refused, 0, 3*ms, 4*ms), by(1, refused, 0, 5*ms, 6*ms),
		}},
		"a lost answer is in the way once": {false, []conformance.Operation{
			by(8, mayGrant, 1, 1*ms, never), by(9, mayEnd, 1, 1*ms, never), by(1, refused, 0, 3*ms, 4*ms),
			granted(1, 2, 5, 6*ms, 7*ms), by(1, released, 2, 8*ms, 9*ms), by(1, refused, 0, 10*ms, 11*ms),
		}},
		"a lost answer is not in the way of its owner": {false, []conformance.Operation{
			owned(by(8, mayGrant, 1, 1*ms, never), "A"), by(9, mayEnd, 1, 1*ms, never), owned(by(1, refused, 0, 3*ms, 4*ms), "A"),
		}},
		"an answer was lost, and keeps the token": {true, []conformance.Operation{
			owned(first, "A"), owned(by(8, mayGrant, 2, 3*ms, never), "A"), by(9, mayEnd, 2, 3*ms, never), gone, owned(granted(1, 3, 7, 12*ms, 13*ms), "A"),
		}},
		"an answer was lost, and keeps the token for longer than one hold": {true, []conformance.Operation{
			owned(first, "A"), owned(by(8, mayGrant, 2, 3*ms, never), "A"), by(9, mayEnd, 2, 3*ms, never), gone,
			owned(granted(1, 3, 7, 12*ms, 13*ms), "A"), by(1, released, 3, 14*ms, 15*ms), owned(granted(1, 4, 7, 16*ms, 17*ms), "A"),
			by(1, released, 4, 18*ms, 19*ms), granted(2, 5, 8, 20*ms, 21*ms),
		}},
		"an answer was lost, keeps the others out, and keeps the token": {true, []conformance.Operation{
			owned(first, "A"), owned(by(8, mayGrant, 2, 3*ms, never), "A"), by(9, mayEnd, 2, 3*ms, never), gone,
			owned(by(2, refused, 0, 12*ms, 13*ms), "B"), owned(granted(1, 3, 7, 14*ms, 15*ms), "A"),
		}},
		"an answer was lost, keeps the others out, and has an older token": {false, []conformance.Operation{
			owned(first, "A"), owned(by(8, mayGrant, 2, 3*ms, never), "A"), by(9, mayEnd, 2, 3*ms, never), gone,
			owned(by(2, refused, 0, 12*ms, 13*ms), "B"), owned(granted(1, 3, 6, 14*ms, 15*ms), "A"),
		}},
		"a lost answer keeps the token until another has had it": {false, []conformance.Operation{
			owned(first, "A"), owned(by(8, mayGrant, 2, 3*ms, never), "A"), by(9, mayEnd, 2, 3*ms, never), gone,
			granted(2, 3, 8, 12*ms, 13*ms), by(2, released, 3, 14*ms, 15*ms), owned(granted(1, 4, 7, 16*ms, 17*ms), "A"),
		}},
		"an answer was lost, and the acquisition started over": {true, []conformance.Operation{
			owned(first, "A"), owned(granted(1, 3, 9, 5*ms, 30*ms), "A"), owned(by(8, mayGrant, 2, 5*ms, never), "A"), by(9, mayEnd, 2, 5*ms, never), gone,
			owned(granted(2, 4, 7, 12*ms, 13*ms), "A"), by(2, released, 4, 14*ms, 15*ms),
		}},
		"a waiting acquisition keeps no token": {false, []conformance.Operation{
			owned(first, "A"), owned(granted(1, 3, 9, 5*ms, 30*ms), "A"), gone,
			owned(granted(2, 4, 7, 12*ms, 13*ms), "A"), by(2, released, 4, 14*ms, 15*ms),
		}},
		"an answer was lost, not in the way": {true, []conformance.Operation{by(8, mayGrant, 1, 1*ms, never), by(9, mayEnd, 1, 1*ms, never), granted(1, 2, 5, 6*ms, 7*ms)}},
		"a lost answer frees nobody else":    {false, []conformance.Operation{first, by(8, mayGrant, 2, 3*ms, never), by(9, mayEnd, 2, 3*ms, never), granted(1, 3, 8, 6*ms, 7*ms), gone}},
		"entering what was not answered": {true, []conformance.Operation{
			owned(by(8, mayGrant, 1, 1*ms, never), "A"), by(9, mayEnd, 1, 1*ms, never),
			owned(granted(1, 2, 5, 2*ms, 3*ms), "A"), owned(granted(2, 3, 5, 4*ms, 5*ms), "A"),
		}},
		"a release of unknown outcome": {true, []conformance.Operation{first, by(9, mayEnd, 1, 3*ms, never), granted(1, 2, 8, 6*ms, 7*ms)}},
	} {
		h := conformance.History{Rule: "Linearizable", Key: "x/" + name, Tokens: true, Operations: c.ops}
		dir := t.TempDir()
		err := judge(artifacts(dir), h, Timeout)
		files, _ := filepath.Glob(filepath.Join(dir, "*.html"))
		if c.sense {
			assert.NoError(t, err, name)
			assert.Empty(t, files)
			continue
		}
		require.Error(t, err, name)
		assert.NotErrorIs(t, err, conformance.ErrInconclusive)
		require.Len(t, files, 1, name)
		assert.Contains(t, err.Error(), files[0], "the error names the picture")
		picture, readErr := os.ReadFile(files[0])
		require.NoError(t, readErr)
		for _, op := range c.ops {
			assert.Contains(t, string(picture), describe(op), name)
		}
	}
}

type artifacts string

func (a artifacts) ArtifactDir() string { return string(a) }

func TestWithoutTokensTheyMeanNothing(t *testing.T) {
	t.Parallel()
	h := conformance.History{Operations: []conformance.Operation{
		granted(0, 1, 0, 1*ms, 2*ms), by(0, conformance.Released, 1, 3*ms, 4*ms), granted(1, 2, 0, 5*ms, 6*ms),
	}}
	require.NoError(t, judge(artifacts(t.TempDir()), h, Timeout))
}

func TestExplanation(t *testing.T) {
	t.Parallel()
	h := conformance.History{Rule: "Linearizable", Key: "x/a", Tokens: true, Operations: []conformance.Operation{
		granted(0, 1, 7, 1*ms, 2*ms), granted(1, 2, 8, 30*ms, 40*ms), by(0, conformance.Released, 1, 100*ms, 110*ms),
	}}
	err := judge(artifacts(t.TempDir()), h, Timeout)
	require.Error(t, err)
	for _, part := range []string{
		"no order of all 3 has every answer right",
		"The longest that has begins with 1 of them. Then somebody without an owner has the key by hold 1 with token 7",
		"0.0300 ..   0.0400  client 1 (caller 1): hold 2 is granted with token 8",
		"the last that fit:\n    0.0010 ..   0.0020  client 1 (caller 0): hold 1 is granted with token 7",
	} {
		assert.Contains(t, err.Error(), part)
	}
	assert.NotContains(t, err.Error(), "hold 1 is released", "what was called later is not next")
}

// TestTimeoutIsNoPass has a history without an order that takes for ever to refute:
// its operations may come in any order, and the state differs each time.
func TestTimeoutIsNoPass(t *testing.T) {
	t.Parallel()
	h := conformance.History{}
	for i := range 40 {
		h.Operations = append(h.Operations, owned(granted(i, i+1, 0, 1*ms, 2*ms), "A"))
	}
	h.Operations = append(h.Operations, by(90, conformance.Kept, 99, 2*ms, 3*ms))
	err := judge(artifacts(t.TempDir()), h, 50*ms)
	require.ErrorIs(t, err, conformance.ErrInconclusive)
}

// TestManyLostAnswers: what is not known costs no time.
func TestManyLostAnswers(t *testing.T) {
	t.Parallel()
	h := conformance.History{Tokens: true}
	for i := range 200 {
		at := time.Duration(i) * ms
		h.Operations = append(h.Operations,
			by(1000+2*i, conformance.MayGrant, 1000+i, at, conformance.Never), by(1001+2*i, conformance.MayEnd, 1000+i, at, conformance.Never),
			granted(0, i+1, uint64(i+1), at, at+ms/4), by(1, conformance.Refused, 0, at+ms/2, at+ms*3/4))
		if i%3 == 0 { // the answer to the release was lost
			h.Operations = append(h.Operations, by(5000+i, conformance.MayEnd, i+1, at+ms/3, conformance.Never))
		} else {
			h.Operations = append(h.Operations, by(0, conformance.Released, i+1, at+ms/3, at+ms*2/5))
		}
	}
	begun := time.Now()
	require.NoError(t, judge(artifacts(t.TempDir()), h, Timeout))
	h.Operations = append(h.Operations, by(0, conformance.Kept, 1, 300*ms, 301*ms))
	err := judge(artifacts(t.TempDir()), h, Timeout)
	require.Error(t, err)
	require.NotErrorIs(t, err, conformance.ErrInconclusive)
	assert.Less(t, time.Since(begun), Timeout/2)
}
