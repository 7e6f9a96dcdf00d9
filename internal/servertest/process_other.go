//go:build !unix

package servertest

import (
	"errors"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

func freezeGroup(*exec.Cmd) error { return errors.ErrUnsupported }

func resumeGroup(*exec.Cmd) error { return errors.ErrUnsupported }
