//! A model's chat template: the Jinja that `transformers` renders, rendered the same way.

use crate::python;
use crate::text_error::TextError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use time::OffsetDateTime;

const NAME: &str = "chat_template";

/// A compiled template.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
}

impl Template {
    /// Compiles `source`; `now` is the time that `strftime_now` tells, for as long as the template lives.
    pub(crate) fn compile(source: &str, now: OffsetDateTime) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| TextError::Compile(chain(&error)))?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", |value: &Value| python::string(value));
        environment.add_filter("e", |value: &Value| python::escape(value));
        environment.add_filter("escape", |value: &Value| python::escape(value));
        environment.add_function("strftime_now", move |format: &str| python::strftime(now, format));
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
        environment.add_template_owned(NAME, source).map_err(|error| TextError::Compile(chain(&error)))?;
        Ok(Self { environment })
    }

    /// The text for `context`, an object with `messages` and whatever else the template reads.
    pub(crate) fn render(&self, context: &serde_json::Value) -> Result<String, TextError> {
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(Value::from(Serde(context))))
            .map_err(|error| TextError::Render(chain(&error)))
    }
}

/// An error with its causes, which hold what `raise_exception` said.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// `{% generation %}` marks what the assistant says and prints nothing; here it becomes `{% if true %}`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        out.push_str(&rest[..start + 2]);
        match tag.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}
