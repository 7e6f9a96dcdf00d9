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
	f, err := os.OpenFile(p.token, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := b.prepare(); err != nil {
			return 0, err
		}
		f, err = os.OpenFile(p.token, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return 0, failed("opening a token counter", err)
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

// errBadCounter comes with a valid token: the counter was not ours and has been
// written anew.
var errBadCounter = errors.New("damaged token counter")

func advance(f *os.File, last, floor uint64) (uint64, error) {
	slots, found := [2]uint64{}, 0
	var size int
	for i := range slots {
		var buf [slotSize]byte
		n, err := f.ReadAt(buf[:], int64(i)*slotGap)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, failed("reading a token counter", err)
		}
		size += n
		if v, ok := parseSlot(buf[:n]); ok {
			slots[i], found = v, found+1
		}
	}
	token := max(max(slots[0], slots[1], last)+1, floor)
	if token > maxToken {
		return 0, fmt.Errorf("%w: filelock: the token counter %s has reached its end at 2^53; correct the machine's clock and remove the counter", backend.ErrPermanent, f.Name())
	}
	older := 0
	if slots[1] < slots[0] {
		older = 1
	}
	if _, err := f.WriteAt(formatSlot(token), int64(older)*slotGap); err != nil {
		return 0, failed("writing a token counter", err)
	}
	if err := syncData(f); err != nil {
		return 0, failed("writing a token counter", err)
	}
	if size == 0 {
		// The file is new, and so is its name in the directory.
		if err := syncDir(filepath.Dir(f.Name())); err != nil {
			return 0, failed("writing a token counter", err)
		}
	}
	if size > 0 && found == 0 {
		return token, errBadCounter
	}
	return token, nil
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
