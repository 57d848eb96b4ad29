// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"strings"
	"testing"
)

func TestList_ShowsNoSecretOfAURL(t *testing.T) {
	for _, line := range []string{
		"x @ http://host/x-1.0-py3-none-any.whl?sig=SECRET", "x @ ftp://host/x.whl?sig=SECRET", "https://host/x?sig=SECRET",
		"x @ https:/host/x.whl?sig=SECRET",
		"x @ host/x.whl?sig=SECRET", "./x.whl?sig=SECRET", "git+https://host/x?sig=SECRET",
		"x @ https://host/x.whl;?sig=SECRET;", "x @ https://host/x.whl#token=SECRET y",
	} {
		if _, err := List([]string{line}); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
