//! A person at a browser: follows redirects, keeps cookies, fills the login form, sends what other forms ask to send.

use std::collections::BTreeMap;

use reqwest::Url;

use super::config::Person;
use super::http::{Http, LoginError, unreachable};

/// More steps than any flow has.
const STEPS: usize = 30;

/// One person's session, gone when this is dropped.
pub(crate) struct Browser<'a> {
    http: &'a Http,
    person: &'a Person,
    // Of the provider, and sent to it alone; paths of cookies tell nothing apart there that their names do not.
    cookies: BTreeMap<String, String>,
}

/// Where a person ended up.
#[derive(Debug)]
pub(crate) enum Landing {
    /// Sent back to the application.
    Callback(Url),
    /// A page with nothing to send.
    Page(String),
}

impl<'a> Browser<'a> {
    pub fn new(http: &'a Http, person: &'a Person) -> Self {
        Self { http, person, cookies: BTreeMap::new() }
    }

    /// Opens a page and goes on until the application's address or a page without a form.
    pub async fn visit(&mut self, start: Url, callback: Option<&str>) -> Result<Landing, LoginError> {
        let provider = start.origin();
        let (mut url, mut form) = (start, None);
        let mut typed = false;
        for _ in 0..STEPS {
            let home = url.origin() == provider;
            let cookies = if home { self.cookie_header() } else { String::new() };
            let response = self.http.send(&url, form.as_deref(), &cookies).await?;
            if home {
                self.take_cookies(&response);
            }
            if response.status().is_redirection() {
                let location = response.headers().get(reqwest::header::LOCATION).and_then(|it| it.to_str().ok());
                url = joined(&url, location.unwrap_or_default())?;
                form = None;
                if callback.is_some_and(|it| url.as_str().starts_with(it)) {
                    return Ok(Landing::Callback(url));
                }
                continue;
            }
            let status = response.status();
            let text = response.text().await.map_err(|source| unreachable(&url, source))?;
            if !status.is_success() {
                return Err(LoginError::Unexpected(format!("{url} answered {status}: {text}")));
            }
            // A password is for the provider: elsewhere a page is the end.
            let Some(found) = Form::find(&text).filter(|_| home) else { return Ok(Landing::Page(text)) };
            if found.asks("password") {
                if typed {
                    return Err(LoginError::Unexpected(format!("{} may not log in", self.person.login)));
                }
                typed = true;
            }
            url = if found.action.is_empty() { url } else { joined(&url, &found.action)? };
            form = Some(found.filled(self.person));
        }
        Err(LoginError::Unexpected(format!("no end of redirects and forms, the last was {url}")))
    }

    fn cookie_header(&self) -> String {
        self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    }

    fn take_cookies(&mut self, response: &reqwest::Response) {
        for header in response.headers().get_all(reqwest::header::SET_COOKIE) {
            let pair = header.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
            match pair.split_once('=') {
                Some((name, "")) => {
                    self.cookies.remove(name.trim());
                }
                Some((name, value)) => {
                    self.cookies.insert(name.trim().to_owned(), value.to_owned());
                }
                None => {}
            }
        }
    }
}

fn joined(base: &Url, location: &str) -> Result<Url, LoginError> {
    base.join(location).map_err(|error| LoginError::Unexpected(format!("{base} leads to '{location}': {error}")))
}

/// The first form of a page. Enough HTML for the pages of providers, which write one attribute like the next.
#[derive(Debug, PartialEq, Eq)]
struct Form {
    action: String,
    fields: Vec<(String, String)>,
}

impl Form {
    fn find(html: &str) -> Option<Self> {
        let (_, after) = html.split_once("<form")?;
        let (tag, rest) = after.split_once('>')?;
        let inside = rest.split("</form>").next().unwrap_or_default();
        let fields = inside.split("<input").skip(1).filter_map(|input| {
            let tag = tag_of(input);
            Some((attribute(tag, "name")?, attribute(tag, "value").unwrap_or_default()))
        });
        Some(Self { action: attribute(tag, "action").unwrap_or_default(), fields: fields.collect() })
    }

    fn asks(&self, field: &str) -> bool {
        self.fields.iter().any(|(name, _)| name == field)
    }

    fn filled(self, person: &Person) -> Vec<(String, String)> {
        let fill = |(name, value): (String, String)| match name.as_str() {
            "login" => (name, person.login.clone()),
            "password" => (name, person.password.clone()),
            _ => (name, value),
        };
        self.fields.into_iter().map(fill).collect()
    }
}

/// Up to the `>` that ends the tag; one inside quotes does not.
fn tag_of(text: &str) -> &str {
    let mut quoted = false;
    let end = text.find(|character| {
        quoted ^= character == '"';
        character == '>' && !quoted
    });
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, after) = tag.split_once(&format!(" {name}=\"")).or_else(|| tag.split_once(&format!("\n{name}=\"")))?;
    Some(plain(after.split('"').next()?))
}

/// Text without HTML's entities.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (entity, tail) = after.split_once(';').unwrap_or((after, ""));
        let code = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        let character = match entity {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            _ => match entity.strip_prefix('#') {
                Some(number) => match number.strip_prefix(['x', 'X']) {
                    Some(hex) => code(hex, 16),
                    None => code(number, 10),
                },
                None => None,
            },
        };
        match character {
            Some(character) => out.push(character),
            None => out.push_str(&format!("&{entity};")),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_form_is_filled() {
        let html = r#"<title>x</title><form method="post" action="/dex/auth/people?req=1&amp;x=&#39;&#x2f;">
            <label>Login <input name="login" type="text" required value=""></label>
            <input type="hidden" name="xsrf" value="a>b"/><input name="password" type="password">
            </form><form action="/other"><input name="later"></form>"#;
        let form = Form::find(html).unwrap();
        assert_eq!(form.action, "/dex/auth/people?req=1&x='/");
        assert!(form.asks("password") && !form.asks("later"));
        let person = Person::ada();
        let pairs = [("login", "ada"), ("xsrf", "a>b"), ("password", person.password.as_str())];
        let wanted: Vec<_> = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(form.filled(&person), wanted);
    }

    #[test]
    fn a_page_without_a_form_has_none() {
        assert_eq!(Form::find("<p>done</p>"), None);
        assert_eq!(plain("a & b &unknown; &lt;"), "a & b &unknown; &lt;".replace("&lt;", "<"));
    }
}
