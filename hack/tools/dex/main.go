// Dex's own server with its in-memory storage, configured by one JSON file: clients with trusted peers, people with
// passwords, and an administration route that a test uses to rotate keys, change people, end sessions and play an
// outage. Dex's own main does not build as a module.
//
//	dex -config dex.json
//
// A restart forgets keys and sessions: the storage lives in memory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
)

// config is the file's content.
type config struct {
	// Issuer is the URL that stands in tokens, an https URL of the address below.
	Issuer string `json:"issuer"`
	// Address to listen on, host:port.
	Address string `json:"address"`
	// Certificate and Key are PEM files.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	// AdminToken opens /admin/ as a bearer token.
	AdminToken string `json:"admin_token"`
	// TokenSeconds is the lifetime of ID tokens.
	TokenSeconds int `json:"token_seconds"`
	// Clients in Dex's own words.
	Clients []storage.Client `json:"clients"`
	// People who may log in.
	People []person `json:"people"`
}

func main() {
	path := flag.String("config", "", "the configuration, a JSON file")
	flag.Parse()
	if err := run(*path); err != nil {
		fmt.Fprintln(os.Stderr, "dex:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	settings, err := read(path)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	web, err := writePages()
	if err != nil {
		return fmt.Errorf("writing the login pages: %w", err)
	}
	defer os.RemoveAll(web)

	logger := logrus.New()
	people := newDirectory(settings.People)
	server.ConnectorsConfig[connectorType] = func() server.ConnectorConfig { return opener{people} }
	kept := freshKeys{memory.New(logger)}
	connectors := []storage.Connector{{ID: connectorID, Type: connectorType, Name: "People"}}
	handler, err := server.NewServer(ctx, server.Config{
		Issuer:             settings.Issuer,
		Storage:            storage.WithStaticConnectors(storage.WithStaticClients(kept, settings.Clients), connectors),
		SkipApprovalScreen: true,
		IDTokensValidFor:   time.Duration(settings.TokenSeconds) * time.Second,
		Web:                server.WebConfig{Dir: web, Theme: theme},
		Logger:             logger,
		PrometheusRegistry: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	admin := &admin{token: settings.AdminToken, storage: kept, people: people, next: handler}
	listener := &http.Server{Addr: settings.Address, Handler: admin, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		// Open connections may end as they like: nobody waits for a provider of a test.
		_ = listener.Close()
	}()
	logger.Infof("listening on %s as %s", settings.Address, settings.Issuer)
	if err := listener.ListenAndServeTLS(settings.Certificate, settings.Key); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func read(path string) (*config, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer file.Close()
	settings := &config{}
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(settings); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", path, err)
	}
	if settings.Issuer == "" || settings.AdminToken == "" || settings.TokenSeconds <= 0 {
		return nil, fmt.Errorf("%s needs issuer, admin_token and a positive token_seconds", path)
	}
	return settings, nil
}
