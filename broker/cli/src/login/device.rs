//! The device flow (RFC 8628): a code is typed in at any browser.

use std::time::Duration;

use oauth2::{DeviceAuthorizationUrl, StandardDeviceAuthorizationResponse};

use super::{Answer, Found};
use crate::fault::Fault;
use crate::show::plain;

/// How long a person may take; the provider may allow less.
const PATIENCE: Duration = Duration::from_secs(1800);

impl Found<'_> {
    /// Logs in with a browser elsewhere.
    pub(super) async fn device(&self) -> Result<Answer, Fault> {
        let endpoint = self.endpoint(
            "device_authorization_endpoint, so there is no login by device; leave --device away",
            self.endpoints.device_authorization_endpoint.as_ref(),
            DeviceAuthorizationUrl::new,
        )?;
        let client = self.client()?.set_device_authorization_url(endpoint);
        let ask = self.ask();
        let start = client.exchange_device_code().add_scopes(self.scopes.clone());
        let started: StandardDeviceAuthorizationResponse =
            start.request_async(&ask).await.map_err(|error| self.refused(error))?;
        let (at, code) = (plain(started.verification_uri()), plain(started.user_code().secret()));
        eprintln!("Open {at} in a browser anywhere, and type in {code}");
        if let Some(whole) = started.verification_uri_complete() {
            eprintln!("Or open {}, and see that it shows the same code.", plain(whole.secret()));
        }
        let polling = client.exchange_device_access_token(&started);
        polling.request_async(&ask, tokio::time::sleep, Some(PATIENCE)).await.map_err(|error| self.refused(error))
    }
}
