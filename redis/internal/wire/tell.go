package wire

import (
	_ "embed" // the script
	"strconv"
)

// TellText is the part of a script that tells those who watch a key that it is free.
//
//go:embed tell.lua
var TellText string

// Parts is into how many parts those who watch a key are divided.
const Parts = 64

// PartOf is the channel of a part of those who watch the key. The prefix is what is before
// "k:" in the name of its record.
func PartOf(prefix, key string, part int) string {
	return prefix + "w" + strconv.Itoa(part) + ":" + key
}
