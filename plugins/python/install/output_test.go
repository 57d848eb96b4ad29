package install

import (
	"net/url"
	"testing"
)

func TestWhatAToolSaysIsShownWithoutWhatMayBeSecret(t *testing.T) {
	u, err := url.Parse("https://user:hunt%25er2@host/simple?token=SECRET")
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"Looking in indexes: https://user:other@host/simple, https://token@host": "Looking in indexes: https://…@host/simple, https://…@host",
		"(from 'https://host/x.whl?sig=a@b') is wrong?":                          "(from 'https://host/x.whl?…') is wrong?",
		"401 for `git+ssh://git:pass@host?sig=a@b`, /simple/x/?key=a (again)":    "401 for `git+ssh://…`, /simple/x/?… (again)",
		"password hunt%er2 or hunt%25er2, and token=SECRET":                      "password **** or ****, and ****",
		"What? #1 me@host": "What? #1 me@host",
	} {
		if got := redact(line, secretsOf(u)); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}
