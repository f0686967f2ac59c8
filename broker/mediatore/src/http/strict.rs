//! JSON read strictly. Derived readers take a list for an object, pass over names that they do not keep, and let the last
//! of two equal names win; here an object is an object at every depth, and no name occurs twice.

use std::fmt;

use serde::{
    de::{
        self, DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess,
        Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Map, Value};

/// How deep objects and lists may stand in each other. What is sent to us has three levels.
pub const DEEPEST: usize = 16;

/// Reads one value, and nothing after it.
///
/// # Errors
/// What is wrong, and where it can be told.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = Within(DEEPEST).deserialize(&mut text)?;
    text.end()?;
    T::deserialize(Strict(value))
}

/// Any JSON of at most this depth, in which no name occurs twice.
#[derive(Clone, Copy)]
struct Within(usize);

impl Within {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        self.0.checked_sub(1).map(Self).ok_or_else(|| E::custom(format!("it is deeper than {DEEPEST} levels")))
    }
}

impl<'de> DeserializeSeed<'de> for Within {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! takes {
    ($($visit:ident: $of:ty),+) => {
        $(fn $visit<E>(self, value: $of) -> Result<Value, E> { Ok(Value::from(value)) })+
    };
}

impl<'de> Visitor<'de> for Within {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    takes!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let (within, mut items) = (self.deeper()?, Vec::new());
        while let Some(item) = list.next_element_seed(within)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (within, mut members) = (self.deeper()?, Map::new());
        while let Some(name) = map.next_key::<String>()? {
            if members.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} stands there twice")));
            }
            let value = map.next_value_seed(within)?;
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

/// A value that is taken for nothing else than what it is.
struct Strict(Value);

impl Strict {
    fn instead_of<T>(&self, wanted: &str) -> Result<T, Error> {
        let found = match &self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(_) => Unexpected::Other("a number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Other("a list"),
            Value::Object(_) => Unexpected::Other("an object"),
        };
        Err(Error::invalid_type(found, &wanted))
    }
}

impl IntoDeserializer<'_, Error> for Strict {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Strict));
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Value::Object(members) => {
                let mut members = MapDeserializer::new(members.into_iter().map(|(name, value)| (name, Strict(value))));
                let value = visitor.visit_map(&mut members)?;
                members.end().map(|()| value)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.0.is_object() { self.deserialize_any(visitor) } else { self.instead_of("an object") }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            // Words are all that our enumerations have.
            Value::String(word) => visitor.visit_enum(word.into_deserializer()),
            _ => self.instead_of("a word"),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}
