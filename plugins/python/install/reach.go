// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// unreachable asks each index once, without credentials, and returns the first that does not answer, or that answers by
// an error about its own state; "" if all do.
func (b *build) unreachable(ctx context.Context) (host string, err error) {
	if b.Sources.Offline {
		return "", nil
	}
	client := &http.Client{Timeout: 15 * time.Second}
	defer client.CloseIdleConnections()
	for _, index := range append([]string{b.Sources.URL}, b.Sources.Extra...) {
		u, err := url.Parse(index)
		if err != nil {
			continue
		}
		u.User = nil
		u.Path = strings.TrimSuffix(u.Path, "/") + "/"
		if err := ask(ctx, client, u); err != nil {
			return u.Host, err
		}
	}
	return "", nil
}

func ask(ctx context.Context, client *http.Client, u *url.URL) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return fmt.Errorf("it answered %s", answer.Status)
	}
	return nil
}
