package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

func TestSampleWorkload(t *testing.T) {
	state, err := os.MkdirTemp("", "otx")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(state)
	d := driver.New(t.Context(), hclog.NewNullLogger(), workload())
	defer d.Close()
	h := testutils.NewDriverHarness(t, d)
	defer h.Kill()
	config := schema.Of[Config]().Default()
	config.StateDir = state
	var packed []byte
	if err := base.MsgPackEncode(&packed, &config); err != nil {
		t.Fatal(err)
	}
	if err := h.SetConfig(&base.Config{PluginConfig: packed, AgentConfig: &base.AgentConfig{}}); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	prints, err := h.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if shell, _ := (<-prints).Attributes["driver.script.shell"].GetString(); shell != "/bin/sh" {
		t.Errorf("attribute driver.script.shell is %q", shell)
	}

	run := func(script string, args ...string) (*drivers.TaskConfig, error) {
		alloc := uuid.Generate()
		cfg := &drivers.TaskConfig{ID: alloc + "/greet/1", AllocID: alloc, Name: "greet", NodeID: driver.NewNode()}
		t.Cleanup(h.MkAllocDir(cfg, false))
		options := schema.Of[TaskConfig]().Default()
		options.Script, options.Args = script, args
		if err := cfg.EncodeConcreteDriverConfig(&options); err != nil {
			t.Fatal(err)
		}
		_, _, err := h.StartTask(cfg)
		return cfg, err
	}
	cfg, err := run(`echo "$0 says $1"; exit 3`, "hello")
	if err != nil {
		t.Fatal(err)
	}
	results, err := h.WaitTask(ctx, cfg.ID)
	if err != nil {
		t.Fatal(err)
	}
	if r := <-results; r.ExitCode != 3 || r.Err != nil {
		t.Errorf("it ended so: %+v", r)
	}
	out, err := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/logs/greet.stdout.0"))
	if string(out) != "greet says hello\n" {
		t.Errorf("its output is %q, %v", out, err)
	}
	if err := h.DestroyTask(cfg.ID, true); err != nil {
		t.Error(err)
	}
	if _, err := run(""); err == nil || !strings.Contains(err.Error(), "script is empty") {
		t.Errorf("an empty script: %v", err)
	}
}
