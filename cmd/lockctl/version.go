package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of lockctl, of Go, and the revision it was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return exitWith(exitInternal, "this binary was built without build information; build it with go build")
			}
			var text strings.Builder
			printVersion(&text, info)
			if _, err := io.WriteString(cmd.OutOrStdout(), text.String()); err != nil {
				return outputError(err)
			}
			return nil
		},
	}
}

const unversioned = "(devel)"

// buildVersion is the version of the module, as the go command wrote it into the binary.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unversioned
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	if info.Main.Version == "" {
		return unversioned
	}
	return info.Main.Version
}

func printVersion(w io.Writer, info *debug.BuildInfo) {
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	fmt.Fprintf(w, "lockctl %s\n", versionOf(info))
	fmt.Fprintf(w, "go       %s %s/%s\n", info.GoVersion, setting["GOOS"], setting["GOARCH"])
	revision := "unknown"
	if r := setting["vcs.revision"]; r != "" {
		revision = r
		if t := setting["vcs.time"]; t != "" {
			revision += " of " + t
		}
		if setting["vcs.modified"] == "true" {
			revision += ", modified"
		}
	}
	fmt.Fprintf(w, "revision %s\n", revision)
}
