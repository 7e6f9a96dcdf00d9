package main

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

const rootHelp = `lockctl runs commands under locks that several machines share, and shows who holds
them.

The backend is a URL: file: for the processes of one machine (the default, no
server needed); for several machines redis://, rediss://, redlock://, mysql://,
etcd://, etcds://, zk:// or zks://. lockctl compare shows what each of them promises.`

const runHelp = `Run COMMAND while holding KEY, and exit with its status.

Everything after -- is passed to the command as it is. The command finds
LOCK_KEY and LOCK_TOKEN in its environment. The token grows with every grant of
the key: pass it to whatever the command changes, and let that refuse a token
smaller than one it has seen.

The backend is the URL of --url, else the locker that --config and --locker name,
else the URL of LOCK_URL or the locker that LOCK_CONFIG and --locker name (not both),
else file:, which is for the processes of this user on this machine. Prefer LOCK_URL
for URLs with a password, since other users can read command lines.

With --also, or a locker that has also, the key is held in two backends, for a move from
one to the other: first in the old one, which is that of --url, then in the new one. The
hold is lost when either is. LOCK_TOKEN is larger than all that either has granted.

The TTL is that of --ttl, else that of the locker, else that of the URL, as in
redis://cache?ttl=30s, else 15s, or the nearest that the backend accepts.

The lease is renewed every third of the TTL. When the hold is lost all the same,
the command and what it has started get SIGTERM, and SIGKILL min(grace, TTL/3)
later, before anybody else can get the key. Signals sent to lockctl are passed on
to the command's process group. When lockctl itself dies, everything is killed; on
systems other than Linux, the process group.`

const runExample = `  lockctl run nightly -- ./report.sh --full
  lockctl run --no-wait nightly -- ./report.sh         # cron: skip when it still runs
  lockctl run --wait 5m --ttl 30s migrate -- ./migrate up
  LOCK_URL=redis://:secret@cache:6379 lockctl run nightly -- ./report.sh
  lockctl run nightly -- sh -c 'echo "token $LOCK_TOKEN"'
  lockctl run -- -key -- ./report.sh                   # a key that begins with a dash`

// statuses are the exit statuses of each command, for its help.
var statuses = map[string]string{
	"run": `  the command's own, and:
   64    wrong usage, key, URL or TTL; nothing was started
   69    the backend cannot be reached, or refuses for good
   70    the command has ended, and its status cannot be had
   75    somebody else holds the key
   76    the hold was lost: the command was stopped, or was not alone to its end
  126    the command cannot be executed
  127    there is no such command
  128+n  signal n ended the command, or arrived while waiting for the key`,
	"inspect": `    0    the key is held
    1    nobody holds the key` + commonStatuses,
	"ls": `    0    the keys were listed, if there are any` + commonStatuses,
	"unlock": `    0    the hold was ended, or will end at its expiry
    1    nobody holds the key; nothing was changed
   75    somebody else holds it, or the same one anew; nothing was changed` + commonStatuses,
	"wait": `    0    nobody holds the key
   75    --timeout has passed, and somebody holds it` + commonStatuses,
	"compare": `    0    the promises were shown` + commonStatuses,
	"status": `    0    nobody was seen who uses the old backend alone
    1    somebody uses the old backend alone
   75    a holder of the old backend waits for the new one, or a key moves: look again
   76    so does somebody the new one: they do not exclude each other` + commonStatuses,
	"cleanup": `    0    it was done, if there was anything to do` + commonStatuses,
	"floor":   `    0    the tokens go on` + commonStatuses,
	"check": `    0    every promise that could be tried was kept
    1    a rule was broken, or nothing could be tried
   75    nothing was broken, and this machine or the server was too slow for a verdict on all` + commonStatuses,
}

const commonStatuses = `
   64    wrong usage, key or URL
   69    the backend cannot be reached, stops answering, or refuses
   70    the output cannot be written
  128+n  signal n ended it: 130 for SIGINT, 143 for SIGTERM`

// commandsBelow are the commands of a command.
func commandsBelow(root *cobra.Command, name string) []*cobra.Command {
	c, _, err := root.Find([]string{name})
	if err != nil {
		return nil
	}
	return c.Commands()
}

// addStatuses puts the statuses of a command, and for the tool those of run, at the end
// of its help.
func addStatuses(root *cobra.Command) {
	usage := root.UsageTemplate()
	for _, c := range append(root.Commands(), commandsBelow(root, "migrate")...) {
		c.SetUsageTemplate(usage)
		if text := statuses[c.Name()]; text != "" {
			c.SetUsageTemplate(usage + "\nExit status:\n" + text + "\n")
		}
	}
	root.SetUsageTemplate(usage + "\nExit status of run (the others have theirs in their --help):\n" + statuses["run"] + "\n")
}

func newRootCommand(p *printer) *cobra.Command {
	root := &cobra.Command{
		Use:           "lockctl",
		Short:         "Run commands under locks that several machines share",
		Long:          rootHelp,
		Example:       runExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			return usageError("say what to do, for example lockctl run KEY -- COMMAND; see lockctl --help")
		},
	}
	root.Version = buildVersion()
	root.SetVersionTemplate("lockctl {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version; lockctl version also prints what it was built from")
	root.PersistentFlags().BoolVarP(&p.quiet, "quiet", "q", false, "don't warn of how the server, its user or the client is set up; what goes wrong is still said")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.DisableSuggestions = true
	root.AddCommand(newRunCommand(p), newInspectCommand(p), newListCommand(p), newUnlockCommand(p), newWaitCommand(p),
		newCompareCommand(p), newCheckCommand(p), newMigrateCommand(p), newCleanupCommand(p),
		newVersionCommand())
	addStatuses(root)
	return root
}

// runConfig is what lockctl run was asked to do.
type runConfig struct {
	source source
	from   address
	ttl    time.Duration // zero: the default of the backend
	wait   time.Duration // negative: without limit; zero: ask once
	grace  time.Duration
	label  string
	key    string
	argv   []string // the command and its arguments
}

func newRunCommand(p *printer) *cobra.Command {
	cfg := runConfig{}
	var noWait bool
	cmd := &cobra.Command{
		Use:                   "run [flags] KEY -- COMMAND [ARG...]",
		Short:                 "Run a command while holding a key",
		Long:                  runHelp,
		Example:               runExample,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			return splitArgs(&cfg, args, cmd.ArgsLenAtDash())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			switch {
			case noWait && flags.Changed("wait"):
				return usageError("--wait and --no-wait exclude each other")
			case noWait:
				cfg.wait = 0
			case !flags.Changed("wait"):
				cfg.wait = -1
			case cfg.wait < 0:
				return usageError("--wait %s is negative; leave it out to wait without limit", cfg.wait)
			}
			switch {
			case flags.Changed("ttl") && cfg.ttl <= 0:
				return usageError("--ttl %s; it must be positive, for example 15s", cfg.ttl)
			case cfg.grace < 0:
				return usageError("--grace %s is negative", cfg.grace)
			}
			from, err := cfg.source.resolve(p)
			if err != nil {
				return err
			}
			cfg.from = from
			if !flags.Changed("ttl") {
				cfg.ttl = from.ttl
			}
			if !flags.Changed("label") {
				cfg.label = defaultLabel(cfg.argv[0])
			}
			kin.adopt()
			t := &tool{printer: p, open: openClient, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
			return t.run(cfg)
		},
	}
	f := cmd.Flags()
	cfg.source.register(cmd)
	cfg.source.registerAlso(cmd)
	f.DurationVar(&cfg.ttl, "ttl", lock.DefaultTTL, "how long others wait when lockctl and its machine die")
	f.DurationVar(&cfg.wait, "wait", 0, "how long to wait for the key; 0 asks once (default without limit)")
	f.BoolVar(&noWait, "no-wait", false, "give up at once when somebody else holds the key")
	f.DurationVar(&cfg.grace, "grace", 5*time.Second, "time between SIGTERM and SIGKILL when the hold is lost, at most a third of the TTL")
	f.StringVar(&cfg.label, "label", "", "`text` that tells others who holds the key (default user and command)")
	return cmd
}

// splitArgs sorts the arguments into KEY and COMMAND. It does not repeat what it
// complains about: a misplaced URL may hold a password.
func splitArgs(cfg *runConfig, args []string, dash int) error {
	const form = "write lockctl run [flags] KEY -- COMMAND [ARG...]"
	if dash == 0 && len(args) > 1 && args[1] == "--" {
		// A key that begins with a dash stands behind one of its own.
		args, dash = append([]string{args[0]}, args[2:]...), 1
	}
	switch {
	case len(args) == 0 || dash == 0:
		return usageError("the key is missing; %s", form)
	case dash < 0 && len(args) > 1:
		return usageError("the command must follow --; %s", form)
	case dash > 1:
		return usageError("there are %d arguments before --, not just the key; %s", dash, form)
	case dash < 0 || len(args) == 1:
		return usageError("the command is missing; %s", form)
	case args[1] == "":
		return usageError("the command is empty; %s", form)
	}
	cfg.key, cfg.argv = args[0], args[1:]
	if err := lock.ValidateKey(cfg.key); err != nil {
		return usageError("%s", plain(err))
	}
	return nil
}

// defaultLabel names the user and the command, without its arguments, which may
// hold secrets.
func defaultLabel(command string) string {
	label := filepath.Base(command)
	if u, err := user.Current(); err == nil && u.Username != "" {
		label = u.Username + ": " + label
	}
	label = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(label, "?"))
	for len(label) > backend.MaxOwner {
		_, n := utf8.DecodeLastRuneInString(label)
		label = label[:len(label)-n]
	}
	return label
}
