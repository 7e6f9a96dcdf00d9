package zklock

// versions remembers in which version the nodes of keys were when this session left
// them free. While a key's version stays the same nobody has created a node since, so
// that a try needs no look: it is sent on the condition that the version is that one.
// Where that was wrong, the key is in use by others too, and looked at first until it
// is found as it was left. The session's mutex guards it.
type versions map[string]leftAt

type leftAt struct {
	version int32
	shared  bool // others have come between
}

// versionsMost bounds how many keys are remembered.
const versionsMost = 4096

// leftFree notes that the node of a hold was deleted. There is none before it, and any
// behind it has changed the version.
func (s *session) leftFree(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !n.granted || n.version == anyVersion {
		return
	}
	if len(s.left) >= versionsMost {
		clear(s.left)
	}
	s.left[n.key] = leftAt{n.version, s.left[n.key].shared}
}

// freeAt is the version in which the key may still be free.
func (s *session) freeAt(key string) (version int32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.left[key]
	return v.version, ok && !v.shared
}

// seen notes the version that a look, or a refused condition, has found. Any other than
// the one that is remembered means that the key is shared.
func (s *session) seen(key string, version int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.left[key]; ok {
		v.shared = v.version != version
		s.left[key] = v
	}
}
