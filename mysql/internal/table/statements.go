package table

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// What the statements have in common. UTC_TIMESTAMP is the time at which a statement
// began, the same in all of its parts, and never earlier than the instant at which
// the client sent it.
const (
	epoch     = "TIMESTAMP'1970-01-01 00:00:00'"
	now       = "UTC_TIMESTAMP(6)"
	nowMicros = "TIMESTAMPDIFF(MICROSECOND," + epoch + "," + now + ")"
	nobody    = "'-'" // in place of an owner, of holds; some servers take '' for NULL
	// lastToken: from 2^53 on, floating point numbers no longer tell neighbours apart.
	lastToken = 1<<53 - 1
	// nextToken rises with the clock, so that losing the row repeats no token. It comes before
	// updated is set: the server assigns from left to right.
	nextToken = "LAST_INSERT_ID(GREATEST(token+1," + nowMicros + ",TIMESTAMPDIFF(MICROSECOND," + epoch + ",updated)+1))"
	// touched leaves a later time as it is: that is the floor of the next token of a key that
	// was held when the floor was raised, and whose token has to stay.
	touched = "updated=GREATEST(updated," + now + ")"
	// sameToken reports the token of the row that was changed.
	sameToken = "token=LAST_INSERT_ID(token)"
	columns   = "lock_key,owner,token,hold_count,holds,note,created,updated,expires"
)

// floorKey is the row whose token is the largest that Cleanup has removed. No key
// of a user has a control character.
const floorKey = "\x00"

// statement builds the text of a statement. Values are numbers and hexadecimal
// literals, so that there is nothing to quote.
type statement []byte

func (s statement) text(text string) statement { return append(s, text...) }

// bytes writes a hexadecimal literal. It must not be empty.
func (s statement) bytes(v string) statement {
	s = append(s, "x'"...)
	s = hex.AppendEncode(s, []byte(v))
	return append(s, '\'')
}

func (s statement) int(v int64) statement { return strconv.AppendInt(s, v, 10) }

// micros writes a duration as a number of microseconds, rounded up.
func (s statement) micros(d time.Duration) statement { return s.int(wire.Micros(d)) }

func (s statement) where(key string) statement {
	return s.text(" WHERE lock_key=").bytes(key)
}

// selectRow reads the row without locking it.
func (b *Backend) selectRow(key string) statement {
	return b.selects().where(key)
}

func (b *Backend) selects() statement {
	return make(statement, 0, 512).text("SELECT " + wire.Writable + ",lock_key,owner,token,holds,note," +
		"TIMESTAMPDIFF(MICROSECOND," + epoch + ",created)," +
		"TIMESTAMPDIFF(MICROSECOND," + epoch + ",expires)," + nowMicros +
		" FROM ").text(b.table)
}

func (b *Backend) updates() statement {
	return make(statement, 0, 512).text("UPDATE ").text(b.table).text(" SET ")
}

// byPrimary keeps the server from reading the whole table for the sake of a part of its
// keys, which it does from a few on, and from locking what it reads.
const byPrimary = " FORCE INDEX (PRIMARY)"

// updateUnlocked changes the rows that meet the condition, which names their keys, and
// that nobody has locked. It reaches them by their keys and waits for none. On a read-only
// server it changes nothing; a look at the row tells why.
func (b *Backend) updateUnlocked(most int, where, set statement) statement {
	where = append(where[:len(where):len(where)], " AND "+wire.Writable...)
	return make(statement, 0, 512+len(where)+len(set)).text("UPDATE ").unlocked(b.table, most, where).text(" SET ").text(string(set))
}

// unlocked names the rows of a statement about several tables. The rows are locked as
// those of a table of its own, and then found again: only SELECT can skip locked rows. LIMIT
// keeps the server from making one table of the two, which would wait.
func (s statement) unlocked(table string, most int, where statement) statement {
	return s.text("(SELECT lock_key AS k FROM ").text(table).text(byPrimary).text(string(where)).text(" LIMIT ").int(int64(most)).
		text(" FOR UPDATE SKIP LOCKED) AS unlocked STRAIGHT_JOIN ").text(table).text(byPrimary + " ON lock_key=k")
}

// grants sets a row to one new hold; the caller adds the condition.
func (b *Backend) grants(req backend.Request) statement {
	return b.updates().text("token=" + nextToken + ",owner=").bytes(ownerField(req.Owner)).
		text(",hold_count=1,holds=").bytes(hashOf(req.ID.Hex())).
		text(",note=").bytes(b.encodeHolder(req.Holder)).
		text(",created=" + now + ",updated=" + now + ",expires=" + now + "+INTERVAL ").micros(req.TTL).text(" MICROSECOND")
}

// takeFree grants the key if it is free or its last hold has expired.
func (b *Backend) takeFree(req backend.Request) statement {
	return b.grants(req).where(req.Key).text(" AND expires<=" + now + " AND " + wire.Writable + " AND token<").int(lastToken)
}

// takeFrom grants the key if the given hold is the only one on it.
func (b *Backend) takeFrom(from backend.Hold, to backend.Request) statement {
	return b.grants(to).where(from.Key).text(" AND holds=").bytes(hashOf(from.ID.Hex())).
		text(" AND expires>" + now + " AND " + wire.Writable + " AND token<").int(lastToken)
}

// insert creates the row, granted. The row of the floor is read with a lock, so that
// a Cleanup at the same time is either seen or waits. Without a row of the key nothing has
// told yet whether the server takes writes.
func (b *Backend) insert(req backend.Request) statement {
	return make(statement, 0, 768).text("INSERT INTO ").text(b.table).text(" (" + columns + ") SELECT ").bytes(req.Key).
		text(",").bytes(ownerField(req.Owner)).
		text(",LAST_INSERT_ID(GREATEST(COALESCE(MAX(token),0)+1," + nowMicros + ")),1,").bytes(hashOf(req.ID.Hex())).
		text(",").bytes(b.encodeHolder(req.Holder)).
		text("," + now + "," + now + "," + now + "+INTERVAL ").micros(req.TTL).text(" MICROSECOND FROM ").text(b.table).
		where(floorKey).text(" HAVING " + wire.Writable + " AND COALESCE(MAX(token),0)<").int(lastToken).text(" LOCK IN SHARE MODE")
}

// renew extends the hold if it is the only one on the key and has not expired, and
// nobody has its row locked.
func (b *Backend) renew(hold backend.Hold) statement {
	return b.updateUnlocked(1, statement(nil).where(hold.Key).text(" AND holds=").bytes(hashOf(hold.ID.Hex())).text(" AND expires>"+now),
		statement(nil).text(sameToken+","+touched+",expires=GREATEST(expires,"+now+"+INTERVAL ").micros(hold.TTL).text(" MICROSECOND)"))
}

const freeing = sameToken + ",owner=" + nobody + ",hold_count=0,holds=" + nobody + "," + touched + ",expires=" + epoch

// release frees the key if the hold is the only one on it and has not expired.
func (b *Backend) release(hold backend.Hold) statement {
	return b.updates().text(freeing).where(hold.Key).text(" AND holds=").bytes(hashOf(hold.ID.Hex())).text(" AND expires>" + now)
}

// force frees the key if its record has the token.
func (b *Backend) force(key string, token uint64) statement {
	return b.updates().text(freeing).where(key).text(" AND token=").int(int64(token)).text(" AND expires>" + now)
}

// revokedHold is the hold that nobody has, for records that were revoked.
var revokedHold = hashOf(backend.ID{}.Hex())

// revoke gives the record with the token to it.
func (b *Backend) revoke(key string, token uint64) statement {
	return b.updates().text(sameToken + ",owner=" + nobody + ",hold_count=1,holds=").bytes(revokedHold).
		text("," + touched).where(key).text(" AND token=").int(int64(token)).text(" AND expires>" + now)
}

// list reads the rows of held keys that begin with the prefix and come after a key.
func (b *Backend) list(prefix, after string) statement {
	s := b.selects().text(" WHERE expires>" + now + " AND lock_key>").bytes(after)
	if prefix != "" {
		s = s.text(" AND ").beginning(prefix)
	}
	return s.text(" ORDER BY lock_key LIMIT ").int(listChunk)
}

// beginning is the condition that the key begins with a prefix, which is not empty.
func (s statement) beginning(prefix string) statement {
	// The bytes of UTF-8 leave room for one more.
	end := []byte(prefix)
	end[len(end)-1]++
	return s.text("lock_key>=").bytes(prefix).text(" AND lock_key<").bytes(string(end))
}

// unchanged is the condition that the row is as it was read.
func (s statement) unchanged(r row) statement {
	return s.where(r.key).text(" AND token=").int(r.token).text(" AND holds=").bytes(r.holds).
		text(" AND expires=" + epoch + "+INTERVAL ").int(r.expires).text(" MICROSECOND AND expires>" + now)
}

// extended sets the holds of a row to the given ones and one more, whose expiry is
// the TTL from now and not before the given one, if the row is as it was read. A
// hold that was there before (was is not zero) must not have expired meanwhile.
func (b *Backend) extended(r row, others []held, hash string, was int64, ttl time.Duration) statement {
	set, where := extension(r, others, hash, was, ttl)
	return append(append(b.updates(), set...), where...)
}

// extension is what extended sets, and its condition.
func extension(r row, others []held, hash string, was int64, ttl time.Duration) (set, where statement) {
	expiry := string(statement(nil).text("GREATEST(").int(was).text("," + nowMicros + "+").micros(ttl).text(")"))
	set = statement(nil).text(sameToken + ",hold_count=").int(int64(len(others) + 1)).text(",holds=")
	if len(others) == 0 {
		set = set.bytes(hash)
	} else {
		set = set.text("CONCAT(").bytes(string(listHolds(others)) + "," + hash + ":").text(",").text(expiry).text(")")
	}
	set = set.text("," + touched + ",expires=" + epoch + "+INTERVAL GREATEST(").int(latest(others)).text(",").text(expiry).
		text(") MICROSECOND")
	where = statement(nil).unchanged(r)
	if was != 0 {
		where = where.text(" AND " + nowMicros + "<").int(was)
	}
	return set, where
}

// without sets the holds of a row to the given ones if the row is as it was read.
func (b *Backend) without(r row, others []held, was int64) statement {
	s := b.updates()
	if len(others) == 0 {
		s = s.text(freeing)
	} else {
		holds := others[0].hash
		if len(others) > 1 {
			holds = string(listHolds(others))
		}
		s = s.text(sameToken + ",hold_count=").int(int64(len(others))).text(",holds=").bytes(holds).
			text("," + touched + ",expires=" + epoch + "+INTERVAL ").int(latest(others)).text(" MICROSECOND")
	}
	return s.unchanged(r).text(" AND " + nowMicros + "<").int(was)
}
