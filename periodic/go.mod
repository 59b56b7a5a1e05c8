module github.com/surebus/eventbus/periodic

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/robfig/cron/v3 v3.0.1
	github.com/surebus/eventbus v0.0.0
	go.uber.org/zap v1.28.0
)

require (
	github.com/gobwas/glob v1.1.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/multierr v1.10.0 // indirect
)

replace github.com/surebus/eventbus => ..

replace github.com/surebus/eventbus/store/sqlite => ../store/sqlite
