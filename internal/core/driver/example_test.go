package driver_test

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Config is the agent's block: plugin "nomad-driver-script" { config { ... } }.
type Config struct {
	Shell string `codec:"shell" default:"/bin/sh" doc:"The program that runs scripts."`
	driver.PluginOptions
}

// TaskConfig is a task's block: config { script = "..." }.
type TaskConfig struct {
	Script string   `codec:"script" required:"true" doc:"What to run."`
	Args   []string `codec:"args" doc:"$1 and so on of the script."`
	driver.TaskOptions
}

// workload is a whole driver: scripts that are written into the job.
func workload() driver.Workload[Config, TaskConfig] {
	var shell string
	return driver.Workload[Config, TaskConfig]{
		Name:    "script",
		Summary: "runs scripts that are written into the job",
		Configure: func(c Config) error {
			shell = c.Shell
			return nil
		},
		Fingerprint: func(context.Context) (map[string]*structs.Attribute, error) {
			return map[string]*structs.Attribute{"driver.script.shell": structs.NewStringAttribute(shell)}, nil
		},
		Command: func(_ context.Context, r driver.Request[TaskConfig]) (*task.Command, error) {
			if r.Config.Script == "" {
				return nil, fmt.Errorf("script is empty: write what to run")
			}
			return r.Run(shell, append([]string{"-c", r.Config.Script, r.Task.Name}, r.Config.Args...)...), nil
		},
	}
}

// A driver plugin's main function; TestSampleWorkload runs the same workload.
func Example() {
	driver.Main(workload())
}
