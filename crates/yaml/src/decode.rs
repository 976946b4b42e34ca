//! Decodes a tree into Rust types.

use serde::{
    de::{
        DeserializeOwned, Deserializer, IntoDeserializer, Visitor,
        value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use crate::{
    Fields, Key, Node, ScalarValue, TypedScalar, Value, YamlError,
    error::{BOOLEAN, LIST, MAP, NUMBER, TEXT, quoted},
};

/// Decodes a document. Errors have the path and the place of the key or value.
pub fn decode<T: DeserializeOwned, S: TypedScalar>(node: &Node<S>) -> Result<T, YamlError> {
    T::deserialize(Decoder { node, part: None })
}

/// Decodes one node.
struct Decoder<'n, S> {
    node: &'n Node<S>,
    /// Its key or its index in the node that encloses it.
    part: Option<String>,
}

/// Decodes the key of a field.
struct KeyDecoder<'n, S>(&'n Key<S>);

impl<'n, S: TypedScalar> Decoder<'n, S> {
    fn is_null(&self) -> bool {
        self.scalar().is_some_and(TypedScalar::is_null)
    }

    fn scalar(&self) -> Option<&'n S> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The error for a value of another kind.
    fn other_kind(&self, expected: &str) -> YamlError {
        let found = match &self.node.value {
            Value::List(_) => LIST,
            Value::Map(_) => MAP,
            Value::Scalar(scalar) => match scalar.value() {
                Ok(ScalarValue::Null) => "nothing",
                Ok(ScalarValue::Flag(_)) => BOOLEAN,
                Ok(ScalarValue::Integer(_) | ScalarValue::Float(_)) => NUMBER,
                Ok(ScalarValue::Text(_)) | Err(_) => TEXT,
            },
        };
        self.placed(YamlError::value(format!("this is {found}"), expected))
    }

    /// The error for a value that cannot be read as a scalar of the field's type.
    fn other_scalar(&self, expected: &str) -> YamlError {
        let message = match self.scalar() {
            Some(scalar) if scalar.is_null() => "value is missing".to_owned(),
            Some(scalar) => format!("{} has the wrong type or size", quoted(scalar.as_ref())),
            None => return self.other_kind(expected),
        };
        self.placed(YamlError::value(message, expected))
    }

    fn placed(&self, error: YamlError) -> YamlError {
        let error = error.at(self.node.place);
        match &self.part {
            Some(part) => error.below(part),
            None => error,
        }
    }

    fn integer<T: TryFrom<i128>>(&self, least: i128, most: i128) -> Result<T, YamlError> {
        let number = self.scalar().and_then(TypedScalar::integer);
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.other_scalar(&format!("a whole number from {least} to {most}")))
    }

    fn fields(&self) -> Result<Fields<'n, S>, YamlError> {
        match &self.node.value {
            Value::Map(_) => self.node.fields().map_err(|error| self.placed(error)),
            Value::List(_) | Value::Scalar(_) => Err(self.other_kind(MAP)),
        }
    }

    fn visit_fields<V: Visitor<'n>>(
        &self,
        fields: Fields<'n, S>,
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        let read = visitor.visit_map(MapDeserializer::new(fields.into_iter().map(decoders)));
        read.map_err(|error| self.placed(error))
    }
}

fn decoders<'n, S: TypedScalar>(
    (key, node): (&'n Key<S>, &'n Node<S>),
) -> (KeyDecoder<'n, S>, Decoder<'n, S>) {
    let part = Some(key.scalar.as_ref().to_owned());
    (KeyDecoder(key), Decoder { node, part })
}

macro_rules! integers {
    ($($method:ident($type:ident) = $visit:ident),+ $(,)?) => {$(
        fn $method<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
            let read = visitor.$visit(self.integer($type::MIN.into(), $type::MAX.into())?);
            read.map_err(|error| self.placed(error))
        }
    )+};
}

impl<'n, S: TypedScalar> Deserializer<'n> for Decoder<'n, S> {
    type Error = YamlError;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let scalar = match &self.node.value {
            Value::List(_) => return self.deserialize_seq(visitor),
            Value::Map(_) => return self.deserialize_map(visitor),
            Value::Scalar(scalar) => scalar,
        };
        let read = match scalar.value() {
            Ok(ScalarValue::Null) => visitor.visit_unit(),
            Ok(ScalarValue::Flag(flag)) => visitor.visit_bool(flag),
            Ok(ScalarValue::Integer(number)) => match u64::try_from(number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => return self.deserialize_i64(visitor),
            },
            Ok(ScalarValue::Float(number)) => visitor.visit_f64(number),
            Ok(ScalarValue::Text(text)) => visitor.visit_borrowed_str(text),
            Err(message) => Err(YamlError::value(message, "")),
        };
        read.map_err(|error| self.placed(error))
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.is_null() {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let text = self.scalar().and_then(TypedScalar::text);
        let read = visitor.visit_borrowed_str(text.ok_or_else(|| self.other_scalar(TEXT))?);
        read.map_err(|error| self.placed(error))
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.deserialize_str(visitor)
    }

    integers!(
        deserialize_i64(i64) = visit_i64,
        deserialize_u32(u32) = visit_u32,
        deserialize_u64(u64) = visit_u64,
    );

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let flag = self.scalar().and_then(TypedScalar::flag);
        visitor.visit_bool(flag.ok_or_else(|| self.other_scalar(BOOLEAN))?)
    }

    /// The value of a keyword that takes none.
    fn deserialize_unit<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        if self.is_null() {
            return visitor.visit_unit();
        }
        let message = "the keyword takes no value";
        Err(self.placed(YamlError::value(message, "the keyword without a value")))
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let Value::List(items) = &self.node.value else {
            return Err(self.other_kind(LIST));
        };
        let items = items.iter().enumerate().map(|(index, node)| Decoder {
            node,
            part: Some(format!("[{index}]")),
        });
        let read = visitor.visit_seq(SeqDeserializer::new(items));
        read.map_err(|error| self.placed(error))
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.visit_fields(self.fields()?, visitor)
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        let mut fields = self.fields()?;
        if S::NULL_IS_ABSENT {
            // An unknown field is kept even if it is null, so that it is refused.
            let is_null = |node| Decoder { node, part: None }.is_null();
            fields.retain(|(key, node)| !is_null(node) || !known.contains(&key.scalar.as_ref()));
        }
        self.visit_fields(fields, visitor)
    }

    /// A keyword alone, or a map of one keyword and its value.
    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        let read = match &self.node.value {
            Value::Scalar(scalar) => {
                let keyword: StrDeserializer<'_, YamlError> = scalar.as_ref().into_deserializer();
                visitor.visit_enum(keyword)
            }
            Value::Map(entries) if entries.len() == 1 => {
                let entry = entries.iter().map(|(key, node)| decoders((key, &**node)));
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(entry)))
            }
            Value::Map(_) | Value::List(_) => return Err(self.other_kind("one keyword")),
        };
        read.map_err(|error| self.placed(error))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit_struct newtype_struct tuple
        tuple_struct identifier ignored_any
    }
}

impl<'n, S: TypedScalar> IntoDeserializer<'n, YamlError> for Decoder<'n, S> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'n, S: TypedScalar> Deserializer<'n> for KeyDecoder<'n, S> {
    type Error = YamlError;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, YamlError> {
        let name = self.0.scalar.as_ref();
        let read = visitor.visit_borrowed_str(name);
        read.map_err(|error: YamlError| error.at(self.0.place).below(name))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 bool char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

impl<'n, S: TypedScalar> IntoDeserializer<'n, YamlError> for KeyDecoder<'n, S> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
