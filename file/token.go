package filelock

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A token counter is a file with two slots, each of 16 digits,
// a space, the CRC-32 of the digits and a newline. A grant overwrites the older slot
// and syncs it, so that a power loss in the middle of a write leaves the other
// slot, and with it the last token that anybody was told. The slots are a page
// apart, so that no sector holds both.
const (
	slotGap  = 4096
	slotSize = 16 + 1 + 8 + 1
)

// nextToken takes the next token of the shard: larger than every token that was
// granted in it, larger than last, and at least the wall clock in microseconds.
// The clock is only a floor: it keeps tokens rising when somebody removes the
// counter. The guard is held.
func (b *files) nextToken(p place, last uint64) (uint64, error) {
	f, err := b.openCounter(p)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	token, err := advance(f, last, wallMicros())
	switch {
	case errors.Is(err, errBadCounter):
		b.log.Warn("filelock: a token counter was damaged by somebody else; tokens go on from the clock", "file", p.token)
	case err != nil:
		return 0, err
	}
	return token, nil
}

// openCounter opens the counter of the shard, and makes it where it is missing.
func (b *files) openCounter(p place) (*os.File, error) {
	f, err := os.OpenFile(p.token, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := b.prepare(); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(p.token, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, failed("opening a token counter", err)
	}
	return f, nil
}

// errBadCounter comes with a valid token: the counter was not ours and has been
// written anew.
var errBadCounter = errors.New("damaged token counter")

func advance(f *os.File, last, floor uint64) (uint64, error) {
	c, err := readCounter(f)
	if err != nil {
		return 0, err
	}
	token := max(c.last()+1, last+1, floor)
	if token > maxToken {
		return 0, fmt.Errorf("%w: filelock: the token counter %s has reached its end at 2^53; correct the machine's clock and remove the counter", backend.ErrPermanent, f.Name())
	}
	if err := c.write(f, token); err != nil {
		return 0, err
	}
	if c.size > 0 && c.found == 0 {
		return token, errBadCounter
	}
	return token, nil
}

// counterFile is a token counter as it was read. A slot that is not valid is 0.
type counterFile struct {
	slots       [2]uint64
	size, found int // bytes that were read, and valid slots
}

func readCounter(f *os.File) (c counterFile, err error) {
	for i := range c.slots {
		var buf [slotSize]byte
		n, err := f.ReadAt(buf[:], int64(i)*slotGap)
		if err != nil && !errors.Is(err, io.EOF) {
			return c, failed("reading a token counter", err)
		}
		c.size += n
		if v, ok := parseSlot(buf[:n]); ok {
			c.slots[i], c.found = v, c.found+1
		}
	}
	return c, nil
}

func (c counterFile) last() uint64 { return max(c.slots[0], c.slots[1]) }

// write puts the number, which is larger than the last, into the older slot.
func (c counterFile) write(f *os.File, token uint64) error {
	older := 0
	if c.slots[1] < c.slots[0] {
		older = 1
	}
	if _, err := f.WriteAt(formatSlot(token), int64(older)*slotGap); err != nil {
		return failed("writing a token counter", err)
	}
	if err := syncData(f); err != nil {
		return failed("writing a token counter", err)
	}
	if c.size == 0 {
		// The file is new, and so is its name in the directory.
		if err := syncDir(filepath.Dir(f.Name())); err != nil {
			return failed("writing a token counter", err)
		}
	}
	return nil
}

func formatSlot(token uint64) []byte {
	digits := fmt.Sprintf("%016d", token)
	return fmt.Appendf(nil, "%s %08x\n", digits, crc32.ChecksumIEEE([]byte(digits)))
}

func parseSlot(b []byte) (uint64, bool) {
	if len(b) != slotSize {
		return 0, false
	}
	v, err := strconv.ParseUint(string(b[:16]), 10, 64)
	if err != nil || v > maxToken || string(formatSlot(v)) != string(b) {
		return 0, false
	}
	return v, true
}

func wallMicros() uint64 { return uint64(max(time.Now().UnixMicro(), 0)) }
