package conformance

import "github.com/mortiselock/lock/conformance/internal/engine"

// Child makes processes out of this program for the rules that need them, which
// kill or stop a client as a whole. Call it before everything else in TestMain or
// main, and set [Config.Child]:
//
//	func config(url string) conformance.Config {
//		return conformance.Config{
//			OpenBackend: func(ctx context.Context) (backend.Backend, error) { return mylock.New(ctx, url) },
//			Child:       url,
//		}
//	}
//
//	func TestMain(m *testing.M) {
//		conformance.Child(config)
//		os.Exit(m.Run())
//	}
//
//	func TestConformance(t *testing.T) { conformance.Run(t, config(startServer(t))) }
//
// In a process that the suite has started, Child opens clients with the Config
// that the function returns for the Config.Child of the run, does what the suite
// tells it, and exits. It ends with the process that started it. In every other
// process Child returns at once.
//
// The function makes a Config from its argument alone, since everything else that
// a test has set up is in another process. Only Open and OpenBackend are used.
func Child(config func(child string) Config) {
	engine.Child(func(child string) engine.Config { return config(child).engine() })
}
