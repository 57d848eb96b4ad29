package main

import (
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestWhatMayBeSecretInAURLIsPartOfTheKeyAndNotOfItsText(t *testing.T) {
	c := schema.Of[Config]().Default()
	of := func(secret string) key {
		set, err := requirement.List([]string{"moon-phase @ https://host/moon_phase-1.2-py3-none-any.whl?sig=" + secret})
		must(t, err)
		job := &TaskConfig{IndexURL: "https://host/simple?token=" + secret, ExtraIndexURLs: []string{"https://user:" + secret + "@host/simple"}, FindLinks: []string{"https://host/page#" + secret}}
		src, err := newSources(t.Context(), &c, job, taskFiles{}, set)
		must(t, err)
		return environmentKey(interpreter.Interpreter{}, install.Installer{Name: "uv"}, set, src, false)
	}
	one, two := of("hunter2"), of("swordfish")
	if strings.Contains(one.text, "hunter2") || one.text != two.text {
		t.Errorf("shown: %s", one.text)
	}
	if one.secret == two.secret || !strings.Contains(one.text, "https://host/moon_phase-1.2-py3-none-any.whl") {
		t.Errorf("secret: %s\nshown: %s", one.secret, one.text)
	}
}
