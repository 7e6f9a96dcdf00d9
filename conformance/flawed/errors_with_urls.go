package flawed

import (
	"context"
	"fmt"
	"net/url"

	"github.com/mortiselock/lock"
)

var z158 = Lock{
	ID: "Z158", Title: "errors with the URL of the request",
	Summary: "The URL has the owner as a parameter, escaped, and gets into logs with the error of a refusal.",
	Seen:    "Errors of net/http, which begin with the method and the whole URL.",
	Instead: "Name the key and the step. Send secrets in a header or in the body, which no error quotes.",
	File:    "errors_with_urls.go", Over: Memory,
	Rule: "NoSecretsInErrors",
	On:   asLocker(func(l *lock.Client) lock.Locker { return quotingURLs{policy{l}} }),
}

// quotingURLs tells which request has failed.
//
//	A: Acquire("ledger", WithOwner("batch/7f3a")), and holds it
//	A's second process: "PUT https://locks.example/ledger?owner=batch%2F7f3a: no room for one more hold"
//	B, who reads logs: url.QueryUnescape, Acquire("ledger", WithOwner("batch/7f3a")) -> granted
//
// Who looks for the owner as it was given does not find it. Caught by NoSecretsInErrors, whose
// owner has characters that are escaped, and which looks for it in every encoding.
//
// Instead: "acquiring ledger: no room for one more hold".
type quotingURLs struct{ policy }

// Acquire implements lock.Locker.
func (q quotingURLs) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := q.policy.Acquire(ctx, key, opts...)
	return lease, withURL(key, opts, err)
}

// TryAcquire implements lock.Locker.
func (q quotingURLs) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := q.policy.TryAcquire(ctx, key, opts...)
	return lease, withURL(key, opts, err)
}

func withURL(key string, opts []lock.Option, err error) error {
	set, invalid := lock.ResolveOptions(opts...)
	if err == nil || invalid != nil || set.Owner == "" {
		return err
	}
	return fmt.Errorf("PUT https://locks.example/%s?owner=%s: %w", url.PathEscape(key), url.QueryEscape(set.Owner), err)
}
