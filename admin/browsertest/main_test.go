package browsertest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var (
	mustRun     = flag.Bool("require", false, "run, and fail if there is no browser")
	screenshots = flag.String("screenshots", "", "write screenshots into this `directory`")
	example     = flag.String("link", "", "`link` to a running examples/admin, of which TestScreenshots takes pictures")
)

// chromium is the context of the one browser of all tests. Each test has a profile of its own in it.
var chromium context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if !*mustRun {
		fmt.Fprintln(os.Stderr, "SKIP: browsertest: a browser takes minutes; to run it: GOWORK=off go -C admin/browsertest test . -args -require")
		return 0
	}
	path, err := findBrowser()
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: browsertest:", err)
		return 1
	}
	ctx, stop := startBrowser(path)
	defer stop()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: browsertest: %s does not start: %v\n", path, err)
		return 1
	}
	chromium = ctx
	return m.Run()
}

// findBrowser returns the path of a Chromium.
func findBrowser() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no chromium in PATH; install it, on Debian with: apt-get install chromium")
}

func startBrowser(path string) (ctx context.Context, stop func()) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU,
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("lang", "en-US"), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // root has no sandbox; the only pages are our own
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancelBrowser := chromedp.NewContext(allocator)
	return ctx, func() {
		cancelBrowser()
		cancel()
	}
}
