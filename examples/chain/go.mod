module github.com/surebus/eventbus/examples/chain

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	github.com/surebus/eventbus v0.0.0
	github.com/surebus/eventbus/store/sqlite v0.0.0
	modernc.org/sqlite v1.62.0
)

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/gobwas/glob v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/multierr v1.10.0 // indirect
	go.uber.org/zap v1.28.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
	modernc.org/libc v1.80.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	zombiezen.com/go/sqlite v1.4.2 // indirect
)

replace github.com/surebus/eventbus => ../..

replace github.com/surebus/eventbus/store/sqlite => ../../store/sqlite
