//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const scheduled = "../../examples/cleanup"

// requireCleans runs the command line of a schedule, where nothing is to be cleaned up.
func requireCleans(t *testing.T, command []string) {
	t.Helper()
	require.Equal(t, "lockctl", filepath.Base(command[0]))
	status, out, errs := run(t, "file:"+t.TempDir(), command[1:]...)
	assert.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, "nothing to clean up")
}

// The service of systemd runs a command that lockctl takes, and systemd finds no mistake in
// it and its timer.
func TestCleanupBySystemd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var units []string
	for _, name := range []string{"lockctl-cleanup.service", "lockctl-cleanup.timer"} {
		text, err := os.ReadFile(filepath.Join(scheduled, name))
		require.NoError(t, err)
		if m := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindSubmatch(text); m != nil {
			requireCleans(t, strings.Fields(string(m[1])))
		}
		// systemd also looks whether the program is there.
		text = regexp.MustCompile(`/usr/local/bin/lockctl`).ReplaceAll(text, []byte("/bin/sh"))
		units = append(units, filepath.Join(dir, name))
		require.NoError(t, os.WriteFile(units[len(units)-1], text, 0o600))
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	said := string(out)
	for line := range strings.Lines(said) {
		assert.NotContains(t, line, "lockctl-cleanup", "what systemd says of the units")
	}
	if err != nil && !strings.Contains(said, "lockctl-cleanup") {
		t.Skipf("systemd-analyze does not work here: %v: %s", err, said)
	}
	require.NoError(t, err, said)
}

// The CronJob has the fields that Kubernetes knows, and a command that lockctl takes.
func TestCleanupByKubernetes(t *testing.T) {
	t.Parallel()
	f, err := os.Open(filepath.Join(scheduled, "cronjob.yaml"))
	require.NoError(t, err)
	defer f.Close()
	var job struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name string `yaml:"name"`
		} `yaml:"metadata"`
		Spec struct {
			Schedule                string `yaml:"schedule"`
			ConcurrencyPolicy       string `yaml:"concurrencyPolicy"`
			StartingDeadlineSeconds int    `yaml:"startingDeadlineSeconds"`
			JobTemplate             struct {
				Spec struct {
					BackoffLimit          int `yaml:"backoffLimit"`
					ActiveDeadlineSeconds int `yaml:"activeDeadlineSeconds"`
					Template              struct {
						Spec struct {
							RestartPolicy string `yaml:"restartPolicy"`
							Containers    []struct {
								Name    string   `yaml:"name"`
								Image   string   `yaml:"image"`
								Command []string `yaml:"command"`
								Env     []struct {
									Name      string `yaml:"name"`
									ValueFrom struct {
										SecretKeyRef struct {
											Name string `yaml:"name"`
											Key  string `yaml:"key"`
										} `yaml:"secretKeyRef"`
									} `yaml:"valueFrom"`
								} `yaml:"env"`
								SecurityContext struct {
									RunAsNonRoot             bool `yaml:"runAsNonRoot"`
									RunAsUser                int  `yaml:"runAsUser"`
									AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
									ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
									Capabilities             struct {
										Drop []string `yaml:"drop"`
									} `yaml:"capabilities"`
									SeccompProfile struct {
										Type string `yaml:"type"`
									} `yaml:"seccompProfile"`
								} `yaml:"securityContext"`
								Resources struct {
									Requests, Limits struct {
										CPU    string `yaml:"cpu"`
										Memory string `yaml:"memory"`
									}
								} `yaml:"resources"`
							} `yaml:"containers"`
						} `yaml:"spec"`
					} `yaml:"template"`
				} `yaml:"spec"`
			} `yaml:"jobTemplate"`
		} `yaml:"spec"`
	}
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	require.NoError(t, d.Decode(&job))
	assert.Equal(t, "batch/v1", job.APIVersion)
	assert.Equal(t, "CronJob", job.Kind)
	assert.Regexp(t, `^(\S+ ){4}\S+$`, job.Spec.Schedule)
	assert.Equal(t, "Forbid", job.Spec.ConcurrencyPolicy)
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	assert.Equal(t, "Never", pod.RestartPolicy)
	require.Len(t, pod.Containers, 1)
	require.Len(t, pod.Containers[0].Env, 1)
	assert.Equal(t, "LOCK_URL", pod.Containers[0].Env[0].Name)
	assert.NotEmpty(t, pod.Containers[0].Env[0].ValueFrom.SecretKeyRef.Key)
	requireCleans(t, pod.Containers[0].Command)
}
