// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
)

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"10c4:ea60", "10c4:ea60", true},
		{"10c4:*", "10c4:ea60", true},
		{"10c4:*", "10c5:ea60", false},
		{"*", "", true},
		{"?", "", false},
		{"?*", "x", true},
		{"a*b*c", "a/b/bc", true}, // a slash is nothing special
		{"[a]", "a", false},       // nor is a bracket
		{`\*`, "*", false},        // nor a backslash
		{"Z?rich*", "Zürich ☃", true},
		{"*-if0?", "x-if01", true},
		{"ab", "abc", false},
		{"abc", "ab", false},
	} {
		if got := glob(test.pattern, test.text); got != test.want {
			t.Errorf("glob(%q, %q) is %t", test.pattern, test.text, got)
		}
	}
}

func TestGlob_ManyStarsAreQuick(t *testing.T) {
	start := time.Now()
	test.False(t, glob(strings.Repeat("a*", 50)+"b", strings.Repeat("a", 10000)), test.Sprint("it fits"))
	took := time.Since(start)
	test.False(t, took > 20*time.Second, test.Sprintf("it took %s", took))
}

func FuzzGlobIsTheSameAsARegularExpression(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add("**?", "ü")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		pattern, text = strings.ToValidUTF8(pattern, ""), strings.ToValidUTF8(text, "")
		expression := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern))
		if want := regexp.MustCompile(`(?s)^(?:` + expression + `)$`).MatchString(text); glob(pattern, text) != want {
			t.Errorf("glob(%q, %q) is %t", pattern, text, !want)
		}
	})
}
